/* timeout SECONDS COMMAND...: executes a command, and ends it by SIGTERM after a time; the status is 124
   then. */

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <tern/command.h>
#include <unistd.h>

static pid_t child;
static volatile sig_atomic_t expired;

static void expire(int signal)
{
    expired = 1;
    kill(child, SIGTERM);
    (void)signal;
}

int main(int argc, char **argv)
{
    char *end = NULL;
    double seconds = argc > 2 ? strtod(argv[1], &end) : -1;
    int status;
    if (!end || *end || !(seconds >= 0 && seconds <= 1e6))
        return usage("timeout SECONDS COMMAND...");
    struct itimerval timer = {.it_value = {(time_t)seconds,
                              (suseconds_t)((seconds - (time_t)seconds) * 1e6)}};
    child = fork();
    if (child == 0) {
        execvp(argv[2], argv + 2);
        fprintf(stderr, "timeout: %s: %s\n", argv[2], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    signal(SIGALRM, expire);
    if (child < 0 || setitimer(ITIMER_REAL, &timer, NULL)) {
        perror("timeout");
        return 125;
    }
    while (waitpid(child, &status, 0) != child)
        if (errno != EINTR)
            return 125;
    return expired ? 124 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
