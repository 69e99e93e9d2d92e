/* Programs started through the shell. */

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "file.h"

extern char **environ;

static void run_shell(const char *command)
{
    char *const arguments[] = { "sh", "-c", (char *)command, NULL };

    execve("/bin/sh", arguments, environ);
    _exit(127);
}

static int wait_for(pid_t pid)
{
    int status;

    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return status;
}

FILE *popen(const char *command, const char *mode)
{
    int ends[2], reads = *mode == 'r';
    FILE *f;
    pid_t pid;

    if (pipe(ends) < 0)
        return NULL;
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        dup2(ends[reads], reads);
        close(ends[0]);
        close(ends[1]);
        run_shell(command);
    }
    close(ends[reads]);
    f = pid < 0 ? NULL : fdopen(ends[!reads], mode);
    if (!f) {
        close(ends[!reads]);
        return NULL;
    }
    f->pid = pid;
    return f;
}

int pclose(FILE *f)
{
    pid_t pid = f->pid;

    fclose(f);
    return wait_for(pid);
}

int system(const char *command)
{
    pid_t pid;

    if (!command)
        return 1;
    fflush(NULL);
    pid = fork();
    if (pid == 0)
        run_shell(command);
    return pid < 0 ? -1 : wait_for(pid);
}
