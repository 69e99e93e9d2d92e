/* Tests processes from inside: fork, exec, wait, signals, timers, memory, pipes. Prints what is not so, and
   returns how many. With arguments it is the program that it executes itself. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/map.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "test.h"

int failures;
volatile sig_atomic_t caught;
static volatile sig_atomic_t last_signal, nested;

void count_signal(int number)
{
    caught++;
    last_signal = number;
}

void catch(int number, void (*handler)(int), sigset_t mask)
{
    struct sigaction action = {.sa_handler = handler, .sa_mask = mask};
    CHECK(sigaction(number, &action, NULL) == 0);
}

int status_of(pid_t pid)
{
    int status = -1;
    pid_t ended;
    while ((ended = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
        ;
    CHECK(ended == pid);
    return status;
}

static void test_fork(void)
{
    static int shared = 1;
    pid_t self = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        shared = 2;
        _exit(getppid() == self && getpid() != self ? 7 : 8);
    }
    CHECK(pid > 0 && pid != self);
    int status = status_of(pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(shared == 1);
    CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD);
    CHECK(waitpid(pid, NULL, WNOHANG) == -1 && errno == ECHILD);
}

/* Many processes at once: each must get a pid of its own, and none may be lost. */
static void test_many(void)
{
    enum { MANY = 40 };
    pid_t pids[MANY];
    int go[2], started = 0, sum = 0;
    char byte;
    CHECK(pipe(go) == 0);
    for (int i = 0; i < MANY; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            close(go[1]);
            _exit(read(go[0], &byte, 1) == 0 ? i : 255);
        }
        if (pids[i] > 0)
            started++;
        for (int k = 0; k < i; k++)
            CHECK(pids[i] != pids[k]);
    }
    CHECK(started == MANY);
    CHECK(waitpid(-1, NULL, WNOHANG) == 0);
    close(go[0]);
    close(go[1]);
    for (int i = 0; i < started; i++) {
        int status;
        CHECK(wait(&status) > 0);
        sum += WEXITSTATUS(status);
    }
    CHECK(sum == MANY * (MANY - 1) / 2);
}

static void test_exec(const char *self)
{
    char *const argv[] = {"name", "executed", "two words", "", NULL};
    char *const envp[] = {"COLOUR=green", NULL};
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGUSR1, SIG_IGN);
        signal(SIGUSR2, count_signal);
        execve(self, argv, envp);
        _exit(1);
    }
    int status = status_of(pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    CHECK(execve("/nothing/here", argv, envp) == -1 && errno == ENOENT);
    CHECK(execve("/etc", argv, envp) == -1 && errno != 0);
    char *big = malloc(70000);
    memset(big, 'x', 69999);
    big[69999] = 0;
    char *const too_big[] = {"name", big, NULL};
    CHECK(execve(self, too_big, envp) == -1 && errno == E2BIG);
    free(big);
}

static int executed(int argc, char **argv)
{
    struct sigaction action;
    int right = argc == 4 && strcmp(argv[0], "name") == 0 && strcmp(argv[2], "two words") == 0 && !*argv[3];
    right &= getenv("COLOUR") && strcmp(getenv("COLOUR"), "green") == 0 && !environ[1];
    sigaction(SIGUSR1, NULL, &action);
    right &= action.sa_handler == SIG_IGN;
    sigaction(SIGUSR2, NULL, &action);
    right &= action.sa_handler == SIG_DFL;
    return right ? 42 : 43;
}

static void test_script(const char *self)
{
    int fd = open("/tmp/script", O_CREAT | O_WRONLY | O_TRUNC, 0755);
    CHECK(fd >= 0);
    char line[128];
    int bytes = snprintf(line, sizeof line, "#! %s interpret\nrest\n", self);
    CHECK(write(fd, line, bytes) == bytes);
    close(fd);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/tmp/script", "ignored", "argument", (char *)NULL);
        _exit(1);
    }
    CHECK(WEXITSTATUS(status_of(pid)) == 44);
    unlink("/tmp/script");
}

static int interpreted(int argc, char **argv)
{
    return argc == 4 && strcmp(argv[2], "/tmp/script") == 0 && strcmp(argv[3], "argument") == 0 ? 44 : 45;
}

static void nest(int number)
{
    count_signal(number);
    if (number == SIGUSR1) {
        kill(getpid(), SIGUSR2); /* blocked until this handler is done */
        nested = caught;
    }
}

static void test_signals(void)
{
    sigset_t mask, old;
    catch(SIGUSR1, count_signal, 0);
    caught = 0;
    CHECK(raise(SIGUSR1) == 0);
    CHECK(caught == 1 && last_signal == SIGUSR1);
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &mask, &old) == 0);
    CHECK(raise(SIGUSR1) == 0 && raise(SIGUSR1) == 0 && caught == 1);
    CHECK(sigprocmask(SIG_SETMASK, &old, NULL) == 0);
    CHECK(caught == 2);
    catch(SIGUSR1, nest, 1u << SIGUSR2);
    catch(SIGUSR2, nest, 0);
    caught = nested = 0;
    raise(SIGUSR1);
    CHECK(nested == 1 && caught == 2 && last_signal == SIGUSR2);
    sigprocmask(SIG_BLOCK, NULL, &mask);
    CHECK(mask == old);
    CHECK(kill(0x7fffff, SIGTERM) == -1 && errno == ESRCH);
    CHECK(kill(getpid(), 0) == 0 && kill(getpid(), 99) == -1);
    signal(SIGUSR1, SIG_DFL);
    signal(SIGUSR2, SIG_DFL);
}

static int end_by(void (*how)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        how();
        _exit(0);
    }
    return status_of(pid);
}

static void wild_pointer(void)
{
    int *volatile wild = (int *)16;
    *wild = 1;
}

static void kernel_pointer(void)
{
    *(volatile int *)0xc0100000 = 1;
}

static void divide(void)
{
    volatile int zero = 0;
    zero = 7 / zero; /* 1 / zero would need no division */
}

static void illegal(void)
{
    __asm__ volatile("ud2");
}

static void privileged(void)
{
    __asm__ volatile("cli");
}

static void port(void)
{
    __asm__ volatile("inb $0x60, %%al" : : : "eax");
}

static void recurse(void)
{
    volatile char block[65536];
    block[0] = 1;
    if (block[0])
        recurse();
    block[1] = 2;
}

static void test_exceptions(void)
{
    CHECK(WTERMSIG(end_by(wild_pointer)) == SIGSEGV);
    CHECK(WTERMSIG(end_by(kernel_pointer)) == SIGSEGV);
    CHECK(WTERMSIG(end_by(divide)) == SIGFPE);
    CHECK(WTERMSIG(end_by(illegal)) == SIGILL);
    CHECK(WTERMSIG(end_by(privileged)) == SIGSEGV);
    CHECK(WTERMSIG(end_by(port)) == SIGSEGV);
    CHECK(WTERMSIG(end_by(recurse)) == SIGSEGV);
}

static void test_killed(void)
{
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            ;
    CHECK(kill(pid, SIGSTOP) == 0);
    int status = 0;
    CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    CHECK(kill(pid, SIGCONT) == 0 && waitpid(pid, NULL, WNOHANG) == 0);
    CHECK(kill(pid, SIGTERM) == 0);
    CHECK(WTERMSIG(status_of(pid)) == SIGTERM);
    pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        signal(SIGTERM, SIG_IGN);
        if (fork() == 0)
            pause();
        pause();
    }
    setpgid(pid, pid);
    CHECK(getpgid(pid) == pid);
    usleep(20000);
    CHECK(kill(-pid, SIGKILL) == 0);
    CHECK(WTERMSIG(status_of(pid)) == SIGKILL);
}

static void test_interrupted(void)
{
    int fds[2];
    char byte;
    struct itimerval timer = {.it_value = {.tv_usec = 20000}};
    CHECK(pipe(fds) == 0);
    catch(SIGALRM, count_signal, 0);
    caught = 0;
    setitimer(ITIMER_REAL, &timer, NULL);
    CHECK(read(fds[0], &byte, 1) == -1 && errno == EINTR && caught == 1);
    setitimer(ITIMER_REAL, &timer, NULL);
    CHECK(sleep(100) > 90 && caught == 2);
    setitimer(ITIMER_REAL, &timer, NULL);
    CHECK(pause() == -1 && errno == EINTR && caught == 3);
    setitimer(ITIMER_REAL, &timer, NULL);
    for (int old = caught; caught == old;)
        ;
    CHECK(caught == 4);
    timer.it_interval.tv_usec = 5000;
    setitimer(ITIMER_REAL, &timer, NULL);
    while (caught < 14)
        pause();
    timer.it_value.tv_usec = timer.it_interval.tv_usec = 0;
    setitimer(ITIMER_REAL, &timer, NULL);
    CHECK(write(fds[1], "x", 1) == 1 && read(fds[0], &byte, 1) == 1 && byte == 'x');
    close(fds[0]);
    close(fds[1]);
    signal(SIGALRM, SIG_DFL);
}

static void test_time(void)
{
    struct timespec before, after, length = {.tv_nsec = 30 * 1000 * 1000};
    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK(nanosleep(&length, NULL) == 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    long long slept = (after.tv_sec - before.tv_sec) * 1000000000ll + after.tv_nsec - before.tv_nsec;
    CHECK(slept >= length.tv_nsec);
}

static void test_memory(void)
{
    char *end = sbrk(0);
    CHECK(sbrk(3 * 4096) == end && sbrk(0) == end + 3 * 4096);
    memset(end, 1, 3 * 4096);
    CHECK(sbrk(-3 * 4096) == end + 3 * 4096);
    CHECK(sbrk(3 * 4096) == end && end[4096] == 0);
    CHECK(sbrk(-3 * 4096) != (void *)-1);
    CHECK(brk((void *)0x90000000) == -1 && errno == ENOMEM);
    char *memory = map_memory(100000);
    CHECK(memory && memory[99999] == 0);
    memset(memory, 5, 100000);
    pid_t pid = fork();
    if (pid == 0) {
        memory[5] = 6;
        _exit(memory[6]);
    }
    CHECK(WEXITSTATUS(status_of(pid)) == 5 && memory[5] == 5);
    CHECK(unmap_memory(memory, 100000) == 0);
    CHECK(unmap_memory((void *)0x400000, 4096) == -1);
}

static void test_mapped(void)
{
    char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && memory[8191] == 0);
    memory[8191] = 1;
    CHECK(munmap(memory, 8192) == 0);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 0, 0) == MAP_FAILED && errno == ENODEV);
}

static long long used(int who)
{
    struct rusage usage;
    CHECK(getrusage(who, &usage) == 0);
    return usage.ru_utime.tv_sec * 1000000 + usage.ru_utime.tv_usec;
}

/* What children have run counts when they have been waited for, and theirs with it. */
static void test_usage(void)
{
    const long long enough = 30000;
    long long before = used(RUSAGE_CHILDREN);
    pid_t pid = fork();
    if (pid == 0) {
        pid_t grandchild = fork();
        while (grandchild == 0 && used(RUSAGE_SELF) < enough)
            ;
        _exit(grandchild == 0 || waitpid(grandchild, NULL, 0) == grandchild ? 0 : 1);
    }
    CHECK(status_of(pid) == 0);
    CHECK(used(RUSAGE_CHILDREN) >= before + enough);
    struct rusage usage;
    CHECK(getrusage(5, &usage) == -1 && errno == EINVAL);
}

static void test_offsets(void)
{
    char directory[] = "/tmp/XXXXXX", path[32], text[8] = "";
    int fds[2];
    CHECK(mkdtemp(directory) == directory);
    snprintf(path, sizeof path, "%s/file", directory);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(write(file, "abcdef", 6) == 6 && lseek(file, 2, SEEK_SET) == 2);
    CHECK(pwrite(file, "XY", 2, 3) == 2 && pread(file, text, 4, 1) == 4 && memcmp(text, "bcXY", 4) == 0);
    CHECK(read(file, text, 8) == 4 && memcmp(text, "cXYf", 4) == 0);
    CHECK(pread(file, text, 8, 6) == 0 && pread(file, text, 1, -1) == -1 && errno == EINVAL);
    CHECK(pwrite(file, "z", 1, 100) == 1 && lseek(file, 0, SEEK_END) == 101);
    CHECK(close(file) == 0 && pread(file, text, 1, 0) == -1 && errno == EBADF);
    CHECK(unlink(path) == 0 && rmdir(directory) == 0);
    CHECK(pipe(fds) == 0 && pread(fds[0], text, 1, 0) == -1 && errno == ESPIPE);
    close(fds[0]);
    close(fds[1]);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "executed") == 0)
        return executed(argc, argv);
    if (argc > 1 && strcmp(argv[1], "interpret") == 0)
        return interpreted(argc, argv);
    test_fork();
    test_many();
    test_exec(argv[0]);
    test_script(argv[0]);
    test_signals();
    test_exceptions();
    test_killed();
    test_interrupted();
    test_time();
    test_memory();
    test_mapped();
    test_usage();
    test_offsets();
    test_pipes();
    printf(failures ? "processes: %d failures\n" : "processes: all right\n", failures);
    return failures ? 1 : 0;
}
