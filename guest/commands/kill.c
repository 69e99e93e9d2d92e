/* kill [-SIGNAL] PID...: sends a signal, TERM if none is named. A negative number names a group. */

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

static int signal_of(const char *text)
{
    for (size_t i = 1; i < sizeof names / sizeof *names; i++)
        if (names[i] && (strcmp(text, names[i]) == 0 ||
                         (strncmp(text, "SIG", 3) == 0 && strcmp(text + 3, names[i]) == 0)))
            return i;
    return *text >= '0' && *text <= '9' ? atoi(text) : -1;
}

int main(int argc, char **argv)
{
    int first = 1, signal = SIGTERM, failed = 0;
    if (argc > 2 && argv[1][0] == '-') {
        signal = signal_of(argv[1] + 1);
        first = 2;
    }
    if (first >= argc || signal < 0) {
        fprintf(stderr, "usage: kill [-SIGNAL] PID...\n");
        return 2;
    }
    for (int i = first; i < argc; i++) {
        if (kill(atoi(argv[i]), signal) == 0)
            continue;
        fprintf(stderr, "kill: %s: %s\n", argv[i], strerror(errno));
        failed = 1;
    }
    return failed;
}
