/*
 * What only Linux has: its ways to system calls, the memory of its screens, and the parts that measure its
 * disks and networks. tern.c has the counterparts in Tern.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "suite.h"

#define REQUESTS_COMMAND "--requests"
#define NETWORK_COMMAND "--network"

const char *const own_program = "/proc/self/exe";

#ifdef __x86_64__
/* A system call of 64-bit programs, which have SYSCALL alone. It overwrites RCX and R11. */
static inline int32_t system_call(long number, long argument)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(argument) : "rcx", "r11", "memory");
    return result;
}
#else
/* A system call by INT 80h. */
static inline int32_t system_call(long number, long argument)
{
    int32_t result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(argument) : "memory");
    return result;
}
#endif

/* System calls by the way that all processors have: one that finds at once that it has nothing to do. */
uint32_t flow_syscall(uint32_t count, const char *path)
{
    (void)path;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum = mix(sum, system_call(SYS_close, -1) == -EBADF);
    return sum;
}

#ifdef __x86_64__
static inline int32_t own_number(unsigned long entry)
{
    (void)entry;
    return system_call(SYS_getpid, 0);
}

static unsigned long quickest_entry(void)
{
    return 0;
}
#else
static inline int32_t own_number(unsigned long entry)
{
    int32_t result;
    __asm__ volatile("call *%2" : "=a"(result) : "a"(SYS_getpid), "r"(entry) : "memory");
    return result;
}

static unsigned long quickest_entry(void)
{
    unsigned long entry = getauxval(AT_SYSINFO);
    if (entry == 0)
        fail("AT_SYSINFO");
    return entry;
}
#endif

/*
 * System calls in the way that the kernel takes for the quickest: in 32-bit programs by its vDSO, which has
 * SYSENTER where the processor has.
 */
uint32_t getpid_quickest(uint32_t count, const char *path)
{
    (void)path;
    unsigned long entry = quickest_entry();
    int32_t self = getpid();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum = mix(sum, own_number(entry) == self);
    return sum;
}

#define MESSAGE_WORDS 16

/* Receives COUNT messages, and answers each with whether it has the right number. */
static void answer_messages(int from, uint32_t count)
{
    uint32_t words[MESSAGE_WORDS];
    for (uint32_t i = 0; i < count; i++) {
        if (recv(from, words, sizeof words, 0) != sizeof words)
            fail("recv");
        words[0] = words[0] == i;
        if (send(from, words, sizeof words, 0) != sizeof words)
            fail("send");
    }
}

/*
 * Messages to another process and its answers, of as many bytes as Tern's messages have. What Linux has for
 * messages that keep their bounds is a pair of sockets.
 */
uint32_t message_round_trip(uint32_t count, const char *path)
{
    (void)path;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        fail("socketpair");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        answer_messages(ends[1], count);
        _exit(0);
    }
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t words[MESSAGE_WORDS] = {i};
        if (send(ends[0], words, sizeof words, 0) != sizeof words)
            fail("send");
        if (recv(ends[0], words, sizeof words, 0) != sizeof words)
            fail("recv");
        sum = mix(sum, words[0]);
    }
    if (status_of(child) != 0)
        fail("the other process");
    return sum;
}

/* Opens the memory of the screen of virtual console NUMBER: KIND is "vcs" for text, "vcsa" with a header
   (vcs(4)). */
static int open_screen(const char *kind, const char *number)
{
    char path[32];
    snprintf(path, sizeof path, "/dev/%s%s", kind, number);
    int screen = open(path, O_RDONLY);
    if (screen < 0)
        fail(path);
    return screen;
}

/* The last lines of COUNT must be in the rows above the cursor of a virtual console (/dev/ttyN). */
void look_at_screen(const char *path, uint32_t count)
{
    const char *number = strstr(path, "tty");
    struct { uint8_t rows, columns, column, row; } header;
    if (number == NULL) {
        errno = ENOTTY;
        fail(path);
    }
    number += strlen("tty");
    int cursor = open_screen("vcsa", number);
    if (read(cursor, &header, sizeof header) != sizeof header)
        fail("read");
    close(cursor);
    int screen = open_screen("vcs", number);
    for (uint32_t above = 1; above <= count && above <= header.row; above++) {
        char row[UINT8_MAX], text[LINE_BYTES];
        off_t at = (off_t)(header.row - above) * header.columns;
        if (pread(screen, row, header.columns, at) != header.columns)
            fail("pread");
        int length = line_text(text, count - above);
        if (length > header.columns || memcmp(row, text, length) != 0) {
            fprintf(stderr, "suite: line %u is not on the screen\n", count - above);
            exit(1);
        }
    }
    close(screen);
}

int other_command(int argc, char *argv[])
{
    if (argc == 8 && strcmp(argv[1], REQUESTS_COMMAND) == 0)
        return requests(argv + 2);
    if (argc >= 3 && strcmp(argv[1], NETWORK_COMMAND) == 0)
        return network(argc - 2, argv + 2);
    return NO_COMMAND;
}
