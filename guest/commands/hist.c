/* hist [-a] COMMAND...: executes a command and shows which instructions the processor has executed meanwhile, in
   this program and all others (20 forms, or all with -a). The machine counts them: ring3 run --guest-tools
   histogram. The same source makes a program for Linux. */

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SHOWN = 20 };

/* EAX, EBX, ECX and EDX. */
struct registers { uint32_t a, b, c, d; };

struct row {
    const char *name;
    uint64_t supervisor, user;
};

/* A word has its first letter in the lowest byte, as CPUID spells the name of the processor's vendor. */
static uint32_t word(const char *letters)
{
    uint32_t result;
    memcpy(&result, letters, sizeof result);
    return result;
}

/* Calls the guest tool "hist". Returns whether there is one: only a guest tool clears the carry flag. */
static int call(const char *function, uint32_t operand, struct registers *answer)
{
    uint32_t a = word("QEMU"), b = operand, c = word(function), d = word("hist");
    uint32_t carry;
    asm volatile("stc\n\tcpuid\n\tsbb %4, %4"
                 : "+a"(a), "+b"(b), "+c"(c), "+d"(d), "=S"(carry) : : "memory", "cc");
    *answer = (struct registers){ a, b, c, d };
    return !carry;
}

/* The most frequent row comes first. */
static int compare(const void *left, const void *right)
{
    const struct row *a = left, *b = right;
    uint64_t counts[] = { a->supervisor + a->user, b->supervisor + b->user };
    return counts[0] < counts[1] ? 1 : counts[0] > counts[1] ? -1 : strcmp(a->name, b->name);
}

/* Fetches what was counted: counters, and then their names, each of which begins with a letter for the privilege,
   and a blank. Returns the rows, or NULL. */
static struct row *fetch(uint32_t counters, uint32_t size)
{
    char *buffer = malloc(size + sizeof(struct registers));
    struct row *rows = calloc(counters / 2 + 1, sizeof *rows);
    if (!buffer || !rows)
        return NULL;
    for (uint32_t at = 0; at < size; at += sizeof(struct registers)) {
        struct registers part;
        call("fetc", at, &part);
        memcpy(buffer + at, &part, sizeof part);
    }
    buffer[size] = 0;
    const char *name = buffer + counters * sizeof(uint64_t);
    for (uint32_t i = 0; i < counters && name < buffer + size; i++) {
        uint64_t count;
        memcpy(&count, buffer + i * sizeof count, sizeof count);
        *(*name == 'u' ? &rows[i / 2].user : &rows[i / 2].supervisor) = count;
        rows[i / 2].name = name + 2;
        name += strlen(name) + 1;
    }
    return rows;
}

static void show(struct row *rows, uint32_t count, uint32_t shown)
{
    uint64_t supervisor = 0, user = 0;
    for (uint32_t i = 0; i < count; i++) {
        supervisor += rows[i].supervisor;
        user += rows[i].user;
    }
    qsort(rows, count, sizeof *rows, compare);
    fprintf(stderr, "%12s %12s\n", "kernel", "programs");
    for (uint32_t i = 0; i < count && i < shown && rows[i].supervisor + rows[i].user; i++)
        fprintf(stderr, "%12llu %12llu %s\n", (unsigned long long)rows[i].supervisor,
                (unsigned long long)rows[i].user, rows[i].name);
    fprintf(stderr, "%12llu %12llu instructions\n", (unsigned long long)supervisor,
            (unsigned long long)user);
}

int main(int argc, char **argv)
{
    struct registers answer;
    int status = 0, all = argc > 1 && !strcmp(argv[1], "-a");
    char **command = argv + 1 + all;
    if (argc < 2 + all) {
        fprintf(stderr, "usage: hist [-a] COMMAND...\n");
        return 2;
    }
    fflush(stdout);
    if (!call("star", -1, &answer)) {
        fprintf(stderr, "hist: the machine does not count: start it with --guest-tools histogram\n");
        return 1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        execvp(command[0], command);
        fprintf(stderr, "hist: %s: %s\n", command[0], strerror(errno));
        _exit(127);
    }
    int failed = pid < 0 || waitpid(pid, &status, 0) != pid;
    call("stop", -1, &answer);
    struct row *rows = failed ? NULL : fetch(answer.b, answer.c);
    if (!rows) {
        perror("hist");
        return 1;
    }
    show(rows, answer.b / 2, all ? answer.b / 2 : SHOWN);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
