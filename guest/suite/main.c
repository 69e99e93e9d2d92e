/*
 * suite: benchmarks of a processor and of the system on it.
 *
 *   suite                         lists the benchmarks: name, group, count, file ("-", "disk", "screen" or
 *                                 "server")
 *   suite NAME COUNT [FILE]       runs one, and prints its checksum; the processor's time in microseconds;
 *                                 cycles of the time-stamp counter and microseconds by the clock, from the
 *                                 work's begin to its end
 *
 * With count 0 a benchmark does all that it does but the work itself: who measures subtracts that.
 * The processor's time is what the kernel says (getrusage), and of use only where the kernel's clock can be
 * trusted.
 *
 * The names with a subject before them (flow_call) are those of van der Kouwe, "Porting the QEMU
 * virtualization software to MINIX 3" (2009), table 5; loop, getpid, pipesw and fork are those of Eiraku and
 * Shinjo, "Running BSD Kernels as User Processes by Partial Emulation and Rewriting of Machine Instructions"
 * (2003), section 6.1. The others are ours. What a paper does not say is said where the benchmark is.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "suite.h"

static const struct benchmark benchmarks[] = {
    {"calibrate_busy", "calibration", 50, calibrate_busy, NO_FILE},
    {"calibrate_idle", "calibration", 500, calibrate_idle, NO_FILE},

    {"loop", "cpu", 120000000, loop, NO_FILE},
    {"arithmetic_int", "cpu", 12000000, arithmetic_int, NO_FILE},
    {"hash", "cpu", 8000, hash, NO_FILE},
    {"flow_call", "cpu", 4000, flow_call, NO_FILE},
    {"flow_conditional", "cpu", 40000000, flow_conditional, NO_FILE},
    {"flow_jumptable", "cpu", 2400000, flow_jumptable, NO_FILE},
    {"memory_load_random", "cpu", 20000000, memory_load_random, NO_FILE},
    {"memory_load_sequential", "cpu", 20, memory_load_sequential, NO_FILE},
    {"memory_store_random", "cpu", 20000000, memory_store_random, NO_FILE},
    {"memory_store_sequential", "cpu", 20, memory_store_sequential, NO_FILE},
    {"memory_copy", "cpu", 30, memory_copy, NO_FILE},

    {"arithmetic_float", "float", 8000000, arithmetic_float, NO_FILE},
    {"float_scalar", "float", 8000000, float_scalar, NO_FILE},
    {"float_packed", "float", 4000000, float_packed, NO_FILE},

    {"code_new", "code", 100000, code_new, NO_FILE},
    {"code_patched", "code", 1000000, code_patched, NO_FILE},

    {"flow_syscall", "system", 100000, flow_syscall, NO_FILE},
    {"getpid", "system", 200000, getpid_quickest, NO_FILE},
    {"flow_taskswitch", "system", 2000, flow_taskswitch, NO_FILE},
    {"flow_exception", "system", 20000, flow_exception, NO_FILE},
    {"signal", "system", 20000, signal_self, NO_FILE},
    {"page_fault", "system", 300, page_fault, NO_FILE},
    {"message", "system", 5000, message_round_trip, NO_FILE},
    {"pipe", "system", 100000, pipe_within, NO_FILE},
    {"pipesw", "system", 10000, pipesw, NO_FILE},
    {"fork", "system", 500, fork_wait, NO_FILE},
    {"exec", "system", 100, exec_self, NO_FILE},

    {"io_disk_read_random", "io", 4000, io_disk_read_random, DISK},
    {"io_disk_read_sequential", "io", 1000, io_disk_read_sequential, DISK},
    {"io_disk_write_random", "io", 4000, io_disk_write_random, DISK},
    {"io_disk_write_sequential", "io", 1000, io_disk_write_sequential, DISK},
    {"io_display", "io", 2000, io_display, SCREEN},
    {"io_network_latency", "io", 1000, io_network_latency, SERVER},
    {"io_network_throughput", "io", 512, io_network_throughput, SERVER},

    {"blended_compile", "blended", 20, blended_compile, NO_FILE},
};

static const size_t benchmark_count = sizeof benchmarks / sizeof benchmarks[0];

_Noreturn void fail(const char *call)
{
    fprintf(stderr, "suite: %s: %s\n", call, strerror(errno));
    exit(1);
}

int start_self(char *const arguments[])
{
    char *command[8] = {"suite"};
    for (size_t i = 0; arguments[i] != NULL && i + 2 < sizeof command / sizeof command[0]; i++)
        command[i + 1] = arguments[i];
    pid_t child = vfork();
    if (child < 0)
        fail("vfork");
    if (child == 0) {
        execv(own_program, command);
        _exit(127);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
        fail("waitpid");
    return WEXITSTATUS(status);
}

static int list(void)
{
    static const char *const files[] = {
        [NO_FILE] = "-", [DISK] = "disk", [SCREEN] = "screen", [SERVER] = "server"};
    for (size_t i = 0; i < benchmark_count; i++) {
        const struct benchmark *b = &benchmarks[i];
        printf("%s %s %u %s\n", b->name, b->group, b->count, files[b->file]);
    }
    return 0;
}

/* The processor's time of this process and of its children that have ended, in microseconds. */
static uint64_t processor_time(void)
{
    uint64_t sum = 0;
    for (int who = RUSAGE_CHILDREN; who <= RUSAGE_SELF; who++) {
        struct rusage usage;
        if (getrusage(who, &usage) != 0)
            fail("getrusage");
        sum += (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000;
        sum += usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    }
    return sum;
}

static int run(const char *name, const char *count, const char *path)
{
    for (size_t i = 0; i < benchmark_count; i++) {
        const struct benchmark *b = &benchmarks[i];
        if (strcmp(b->name, name) != 0)
            continue;
        if (b->file != NO_FILE && path == NULL) {
            const char *what = b->file == SERVER ? "the ADDRESS:PORT of a server" : "a file to work on";
            fprintf(stderr, "suite: %s needs %s\n", name, what);
            return 2;
        }
        uint64_t begin = nanoseconds(), first = __builtin_ia32_rdtsc();
        uint32_t sum = b->run(strtoul(count, NULL, 10), path);
        uint64_t cycles = __builtin_ia32_rdtsc() - first, elapsed = nanoseconds() - begin;
        printf("%s %08x %llu %llu %llu\n", name, sum, (unsigned long long)processor_time(),
               (unsigned long long)cycles, (unsigned long long)elapsed / 1000);
        return 0;
    }
    fprintf(stderr, "suite: there is no benchmark %s\n", name);
    return 2;
}

int main(int argc, char *argv[])
{
    if (argc == 1)
        return list();
    if (argc == 3 && strcmp(argv[1], EXIT_COMMAND) == 0)
        return atoi(argv[2]);
    if (argc == 4 && strcmp(argv[1], COMPILE_COMMAND) == 0)
        return compile(argv[2], argv[3]);
    if (argc >= 4 && strcmp(argv[1], LINK_COMMAND) == 0)
        return link_objects(argv[2], argv + 3);
    if (argc >= 4 && argc <= 5 && strcmp(argv[1], TICKS_COMMAND) == 0)
        return measure_ticks(argv[2], argv[3], argv[4]);
    int status = other_command(argc, argv);
    if (status != NO_COMMAND)
        return status;
    if (argc == 3 || argc == 4)
        return run(argv[1], argv[2], argv[3]);
    fprintf(stderr, "usage: suite [NAME COUNT [FILE]]\n");
    return 2;
}
