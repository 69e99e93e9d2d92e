/* time COMMAND...: executes a command and shows how long it took. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct timespec before, after;
    int status = 0;
    if (argc < 2)
        return 2;
    clock_gettime(CLOCK_MONOTONIC, &before);
    pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[1], argv + 1);
        fprintf(stderr, "time: %s: %s\n", argv[1], strerror(errno));
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        perror("time");
        return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &after);
    long long passed = (after.tv_sec - before.tv_sec) * 1000000000ll + after.tv_nsec - before.tv_nsec;
    fprintf(stderr, "%lld.%06lld s\n", passed / 1000000000, passed % 1000000000 / 1000);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
