/* Pipes and FIFOs: who waits, what ends a wait, and what a write without readers does. */

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "test.h"

#define FIFO "/tmp/fifo"

static void alarm_soon(void)
{
    struct itimerval timer = {.it_value = {.tv_usec = 20000}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void test_without_readers(void)
{
    static char much[20000];
    int fds[2];
    CHECK(pipe(fds) == 0 && close(fds[0]) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        write(fds[1], "x", 1);
        _exit(0);
    }
    int status = status_of(pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
    signal(SIGPIPE, SIG_IGN);
    CHECK(write(fds[1], "x", 1) == -1 && errno == EPIPE);
    catch(SIGPIPE, count_signal, 0);
    caught = 0;
    CHECK(write(fds[1], "x", 1) == -1 && errno == EPIPE && caught == 1);
    close(fds[1]);
    /* The reader goes while the writer waits: what it has written counts, the next write is one too many. */
    CHECK(pipe(fds) == 0);
    pid = fork();
    if (pid == 0) {
        close(fds[0]);
        ssize_t wrote = write(fds[1], much, sizeof much);
        _exit(wrote > 0 && wrote < (ssize_t)sizeof much && write(fds[1], much, 1) == -1 && errno == EPIPE
                  ? 5
                  : 6);
    }
    close(fds[1]);
    CHECK(read(fds[0], much, 10) == 10 && close(fds[0]) == 0);
    CHECK(WEXITSTATUS(status_of(pid)) == 5);
    signal(SIGPIPE, SIG_DFL);
}

static void test_opens_at_once(void)
{
    char byte;
    CHECK(open(FIFO, O_WRONLY | O_NONBLOCK) == -1 && errno == ENXIO);
    int reader = open(FIFO, O_RDONLY | O_NONBLOCK);
    CHECK(reader >= 0 && read(reader, &byte, 1) == 0);
    int writer = open(FIFO, O_WRONLY | O_NONBLOCK);
    CHECK(writer >= 0 && read(reader, &byte, 1) == -1 && errno == EAGAIN);
    CHECK(write(writer, "y", 1) == 1 && close(writer) == 0);
    CHECK(read(reader, &byte, 1) == 1 && byte == 'y' && read(reader, &byte, 1) == 0);
    close(reader);
    int both = open(FIFO, O_RDWR);
    CHECK(both >= 0 && write(both, "z", 1) == 1 && read(both, &byte, 1) == 1 && byte == 'z');
    close(both);
}

/* A child opens the FIFO and waits until the other end is open. */
static void test_opens_that_wait(int its_flags, int flags)
{
    char byte = 0;
    int fds[2];
    CHECK(pipe(fds) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(FIFO, its_flags);
        write(fds[1], "o", 1);
        _exit(fd >= 0
                      && (its_flags == O_RDONLY ? read(fd, &byte, 1) == 1 && byte == 'w'
                                                : write(fd, "w", 1) == 1)
                  ? 7
                  : 8);
    }
    usleep(20000);
    CHECK(fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0 && read(fds[0], &byte, 1) == -1 && errno == EAGAIN);
    int fd = open(FIFO, flags);
    CHECK(fd >= 0);
    if (flags == O_WRONLY)
        CHECK(write(fd, "w", 1) == 1);
    else
        CHECK(read(fd, &byte, 1) == 1 && byte == 'w' && read(fd, &byte, 1) == 0);
    close(fd);
    CHECK(WEXITSTATUS(status_of(pid)) == 7);
    close(fds[0]);
    close(fds[1]);
}

/* A wait that a signal ends leaves nothing open. */
static void test_opens_in_vain(void)
{
    catch(SIGALRM, count_signal, 0);
    caught = 0;
    alarm_soon();
    CHECK(open(FIFO, O_RDONLY) == -1 && errno == EINTR && caught == 1);
    CHECK(open(FIFO, O_WRONLY | O_NONBLOCK) == -1 && errno == ENXIO);
    pid_t pid = fork();
    if (pid == 0)
        _exit(open(FIFO, O_RDONLY));
    usleep(20000);
    int writer = -1;
    CHECK(kill(pid, SIGSTOP) == 0 && (writer = open(FIFO, O_WRONLY | O_NONBLOCK)) >= 0);
    CHECK(kill(pid, SIGKILL) == 0 && WTERMSIG(status_of(pid)) == SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    CHECK(write(writer, "x", 1) == -1 && errno == EPIPE);
    signal(SIGPIPE, SIG_DFL);
    close(writer);
    signal(SIGALRM, SIG_DFL);
}

void test_pipes(void)
{
    test_without_readers();
    CHECK(mkfifo(FIFO, 0600) == 0);
    test_opens_at_once();
    test_opens_that_wait(O_RDONLY, O_WRONLY);
    test_opens_that_wait(O_WRONLY, O_RDONLY);
    test_opens_in_vain();
    CHECK(unlink(FIFO) == 0);
}
