/* fuzz [MESSAGES [SEED]]: sends random messages to the kernel and all servers, from child processes that may
   end by it. The system must go on: at the end it forks, executes, and reads and writes files as before. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tern/calls.h>
#include <tern/fs.h>
#include <tern/hal.h>
#include <tern/is.h>
#include <tern/lib.h>
#include <tern/pm.h>
#include <tern/rs.h>
#include <unistd.h>

#define BATCH 2000             /* messages of a child, if it lives so long */
#define SHARED_BYTES 65536

int ipc_trap(uint32_t operation, endpoint_t endpoint, void *message, uint32_t value);

static uint32_t state;
static char memory[SHARED_BYTES];

static uint32_t random_number(void)
{
    /* xorshift (Marsaglia, 2003) */
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static uint32_t below(uint32_t limit)
{
    return random_number() % limit;
}

/* Numbers at which something ends, addresses of one's own, and anything. */
static uint32_t random_word(void)
{
    static const uint32_t edges[] = {0,          1,
                                     2,          3,
                                     4,          31,
                                     32,         255,
                                     256,        4095,
                                     4096,       65536,
                                     0x7fffffff, 0x80000000,
                                     0xffffffff, 0xfffffffc,
                                     IMAGE_BASE, MAPS_BASE,
                                     STACK_TOP,  STACK_TOP - 4,
                                     USER_END,   USER_END - 1,
                                     SELF,       ANY,
                                     NONE};
    switch (below(6)) {
    case 0:
        return random_number();
    case 1:
        return (uint32_t)memory + below(SHARED_BYTES);
    case 2:
        return below(64);
    case 3:
        return below(5000);
    default:
        return edges[below(sizeof edges / sizeof *edges)];
    }
}

static endpoint_t random_endpoint(void)
{
    switch (below(8)) {
    case 0:
        return random_word();
    case 1:
        return ENDPOINT(below(400), below(SLOTS));
    case 2:
        return SERVICE(below(SERVICES));
    case 3:
        return below(4);
    default:
        return SERVICE(below(5));
    }
}

static int32_t random_type(void)
{
    static const struct {
        uint32_t first, count;
    } ranges[] = {{1, KERNEL_CALLS}, {PM_FORK, 24}, {PM_SERVICE_UP, 24}, {FS_OPEN, 48}, {FS_DEVICE_UP, 2},
                  {0x300, 10}, {RS_UP, 12}, {RS_FAIL, 2}, {0x500, 4}, {IS_DUMP, 3}, {NOTIFICATION, 1}};
    uint32_t which = below(sizeof ranges / sizeof *ranges);
    return below(10) ? (int32_t)(ranges[which].first + below(ranges[which].count)) : (int32_t)random_word();
}

/* What would end the system, or others than this process, in the right way. */
static int is_harmless(const struct message *m)
{
    int32_t type = m->type;
    return type != PM_REBOOT && type != PM_KILL && !(type >= RS_UP && type <= RS_FAULT && type != RS_LIST) &&
           type != PM_FORK && type != FS_SYNC && type != PM_SIGSUSPEND && type != PM_SLEEP &&
           ((type != PM_EXIT && type != PM_SIGRETURN) || below(20) == 0);
}

/* A path now and then, so that requests get further than its check. */
static void random_memory(void)
{
    static const char *const paths[] = {"/", "/tmp/fuzz", "/tmp", "/bin/sh", "/dev/null", "/dev/tty",
                                        "/etc/..", "x"};
    for (int i = 0; i < 8; i++)
        strcpy(memory + below(SHARED_BYTES - 64), paths[below(sizeof paths / sizeof *paths)]);
    for (int i = 0; i < 64; i++)
        memory[below(SHARED_BYTES)] = random_number();
}

static void send_one(void)
{
    union {
        struct message message;
        struct asynchronous table[4];
    } u;
    for (uint32_t i = 0; i < sizeof u / 4; i++)
        ((uint32_t *)&u)[i] = random_word();
    u.message.type = random_type();
    if (!is_harmless(&u.message))
        return;
    if (below(12) == 0) {
        uint32_t value = random_word();
        hal_call(below(20), random_word(), &value, (void *)random_word());
        return;
    }
    uint32_t operation = below(8) ? IPC_SENDREC : below(7);
    void *address = below(20) ? &u : (void *)random_word();
    /* A limit, as many requests would wait for ever. */
    ipc_trap(operation, random_endpoint(), address, operation == IPC_SENDA ? below(4) : 1 + below(300));
}

static void child(uint32_t seed)
{
    state = seed * 2654435761u + 1;
    chdir("/tmp");
    for (int i = 0; i < 3; i++)
        close(i);
    for (int i = 0; i < BATCH; i++) {
        if (i % 50 == 0)
            random_memory();
        send_one();
    }
    _exit(0);
}

static int works(void)
{
    char text[16] = "";
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", "echo alive | cat >/tmp/alive", (char *)NULL);
        _exit(1);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
        return 0;
    int fd = open("/tmp/alive", O_RDONLY);
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got == 6 && strcmp(text, "alive\n") == 0;
}

int main(int argc, char **argv)
{
    unsigned long messages = argc > 1 ? strtoul(argv[1], NULL, 10) : 100000, sent = 0;
    uint32_t seed = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    unsigned children = 0, whole = 0;
    for (; sent < messages; sent += BATCH, seed++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            child(seed);
        if (pid < 0) {
            printf("fuzz: seed %u: no process: %s\n", (unsigned)seed, strerror(errno));
            return 1;
        }
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        children++;
        whole += status == 0;
        if (seed % 8 == 0 && !works()) {
            printf("fuzz: seed %u: the system does not work any more\n", (unsigned)seed);
            return 1;
        }
    }
    if (!works())
        return 1;
    printf("fuzz: %lu messages of %u processes, of which %u sent all of theirs, and all works\n", sent,
           children, whole);
    return 0;
}
