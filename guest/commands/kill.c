/* kill [-SIGNAL] PID..., kill -l: sends a signal, TERM if none is named, or lists their names. A negative number
   names a group. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    [SIGHUP] = "HUP", [SIGINT] = "INT", [SIGQUIT] = "QUIT", [SIGILL] = "ILL", [SIGTRAP] = "TRAP",
    [SIGABRT] = "ABRT", [SIGBUS] = "BUS", [SIGFPE] = "FPE", [SIGKILL] = "KILL", [SIGUSR1] = "USR1",
    [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2", [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM", [SIGTERM] = "TERM",
    [SIGCHLD] = "CHLD", [SIGCONT] = "CONT", [SIGSTOP] = "STOP", [SIGTSTP] = "TSTP"};

#define NAMES (sizeof names / sizeof *names)

static int is_number(const char *text, long *number)
{
    char *end;
    *number = strtol(text, &end, 10);
    return *text && !*end;
}

static int signal_of(const char *text)
{
    long number;
    if (is_number(text, &number))
        return number >= 0 && number < (long)NAMES ? number : -1;
    if (strncmp(text, "SIG", 3) == 0)
        text += 3;
    for (size_t i = 1; i < NAMES; i++)
        if (names[i] && strcmp(text, names[i]) == 0)
            return i;
    return -1;
}

static int list(void)
{
    for (size_t i = 1; i < NAMES; i++)
        if (names[i])
            printf("%u %s\n", (unsigned)i, names[i]);
    return 0;
}

static int send(const char *process, int signal)
{
    long number;
    if (!is_number(process, &number))
        fprintf(stderr, "kill: %s: not the number of a process\n", process);
    else if (kill(number, signal) != 0)
        fprintf(stderr, "kill: %s: %s\n", process, strerror(errno));
    else
        return 0;
    return 1;
}

int main(int argc, char **argv)
{
    int first = 1, signal = SIGTERM, failed = 0;
    if (argc == 2 && strcmp(argv[1], "-l") == 0)
        return list();
    if (argc > 1 && argv[1][0] == '-') {
        signal = signal_of(argv[1] + 1);
        first = 2;
    }
    if (first >= argc || signal < 0) {
        fprintf(stderr, "usage: kill [-SIGNAL] PID...\n       kill -l\n");
        return 2;
    }
    for (int i = first; i < argc; i++)
        failed |= send(argv[i], signal);
    return failed;
}
