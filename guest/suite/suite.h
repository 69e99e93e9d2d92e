/*
 * What the benchmarks share. Each is a function that does its work COUNT times and
 * gives a checksum of what came out, which is the same on every machine.
 */
#ifndef SUITE_H
#define SUITE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The kind of file that a benchmark works on; its path is an argument. A server has address and port
   instead. */
enum file_kind { NO_FILE, DISK, SCREEN, SERVER };

struct benchmark {
    const char *name;
    const char *group;
    /* So many take 20 to 200 ms on a PC of today, but for the calibrations, which count milliseconds. */
    uint32_t count;
    uint32_t (*run)(uint32_t count, const char *path);
    enum file_kind file;
};

/* Names the call that went wrong, with errno, and ends the program. */
_Noreturn void fail(const char *call);

/* Takes VALUE into checksum SUM: a step of FNV-1 with words for bytes. */
static inline uint32_t mix(uint32_t sum, uint32_t value)
{
    return (sum * 16777619u) ^ value;
}

/* The next of a sequence whose high bits look random: a linear congruential one (Knuth, volume 2, section
   3.2.1). */
static inline uint32_t next_random(uint32_t x)
{
    return x * 1664525u + 1013904223u;
}

/* The time by the system's own clock, from any beginning. */
uint64_t nanoseconds(void);

uint32_t calibrate_busy(uint32_t count, const char *path);
uint32_t calibrate_idle(uint32_t count, const char *path);

uint32_t loop(uint32_t count, const char *path);
uint32_t arithmetic_int(uint32_t count, const char *path);
uint32_t hash(uint32_t count, const char *path);
uint32_t flow_call(uint32_t count, const char *path);
uint32_t flow_conditional(uint32_t count, const char *path);
uint32_t flow_jumptable(uint32_t count, const char *path);
uint32_t memory_load_random(uint32_t count, const char *path);
uint32_t memory_load_sequential(uint32_t count, const char *path);
uint32_t memory_store_random(uint32_t count, const char *path);
uint32_t memory_store_sequential(uint32_t count, const char *path);
uint32_t memory_copy(uint32_t count, const char *path);

uint32_t arithmetic_float(uint32_t count, const char *path);
uint32_t float_scalar(uint32_t count, const char *path);
uint32_t float_packed(uint32_t count, const char *path);

uint32_t code_new(uint32_t count, const char *path);
uint32_t code_patched(uint32_t count, const char *path);

uint32_t flow_syscall(uint32_t count, const char *path);
uint32_t getpid_quickest(uint32_t count, const char *path);
uint32_t flow_taskswitch(uint32_t count, const char *path);
uint32_t flow_exception(uint32_t count, const char *path);
uint32_t signal_self(uint32_t count, const char *path);
uint32_t page_fault(uint32_t count, const char *path);
uint32_t message_round_trip(uint32_t count, const char *path);
uint32_t pipe_within(uint32_t count, const char *path);
uint32_t pipesw(uint32_t count, const char *path);
uint32_t fork_wait(uint32_t count, const char *path);
uint32_t exec_self(uint32_t count, const char *path);

uint32_t io_disk_read_random(uint32_t count, const char *path);
uint32_t io_disk_read_sequential(uint32_t count, const char *path);
uint32_t io_disk_write_random(uint32_t count, const char *path);
uint32_t io_disk_write_sequential(uint32_t count, const char *path);
uint32_t io_display(uint32_t count, const char *path);

uint32_t io_network_latency(uint32_t count, const char *path);
uint32_t io_network_throughput(uint32_t count, const char *path);

uint32_t blended_compile(uint32_t count, const char *path);

/* The programs that benchmarks start: this one, by one of these words as its first argument. */
#define EXIT_COMMAND "--exit"
#define COMPILE_COMMAND "--compile"
#define LINK_COMMAND "--link"

/* Starts this program with ARGUMENTS (the first is the word; the last is NULL) and waits; gives its exit
   status. */
int start_self(char *const arguments[]);

/* Waits for a child to end by itself, and gives its exit status. */
uint32_t status_of(pid_t child);

/* The path of this program. */
extern const char *const own_program;

/* The text of line number I of io_display, without its end; gives its length. */
#define LINE_BYTES 80
int line_text(char text[LINE_BYTES], uint32_t i);

/* Ends the program unless the last of COUNT lines are on the screen of the terminal PATH. */
void look_at_screen(const char *path, uint32_t count);

/* --ticks CYCLES HZ [SOURCE], by what each system has: its clock is set to HZ ticks a second, and they are
   counted. */
#define TICKS_COMMAND "--ticks"
int measure_ticks(const char *cycles, const char *hz, const char *source);
void set_ticks(uint32_t hz, const char *source);
uint32_t ticks_so_far(void);

/* Words that only one system knows. Gives the exit status, or NO_COMMAND if it is none of these. */
#define NO_COMMAND (-1)
int other_command(int argc, char *argv[]);

/* --compile SOURCE OBJECT, --link PROGRAM OBJECT... and so on: give exit statuses. */
int requests(char *arguments[]);
int network(int count_of_arguments, char *arguments[]);
int compile(const char *source, const char *object);
int link_objects(const char *program, char *const objects[]);

#endif
