/* Execution of programs. */

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tern/pm.h>
#include <tern/program.h>
#include <unistd.h>
#include "request.h"

#define ARGUMENTS_MAX 1024
#define PATH_BYTES 1024

static size_t count(char *const strings[])
{
    size_t n = 0;
    while (strings && strings[n])
        n++;
    return n;
}

int execve(const char *path, char *const argv[], char *const envp[])
{
    /* On the stack, which is allocated when touched, rather than 64 KiB of every program's data. */
    char block[PM_ARGUMENT_BYTES] __attribute__((aligned(4)));
    int used = program_arguments(block, sizeof block, argv, envp, 0);
    if (used < 0) {
        errno = -used;
        return -1;
    }
    struct message m = {.w = {WORD(path), strlen(path) + 1, WORD(block), used}};
    request(SERVICE(PM), PM_EXEC, &m);
    return -1;
}

int execv(const char *path, char *const argv[])
{
    return execve(path, argv, environ);
}

/* A file that is executable, but no program, is a script of the shell (POSIX, exec). */
static void execute_script(const char *path, char *const argv[])
{
    char *shell[ARGUMENTS_MAX + 2];
    size_t n = count(argv);
    if (n > ARGUMENTS_MAX) {
        errno = E2BIG;
        return;
    }
    shell[0] = "sh";
    shell[1] = (char *)path;
    for (size_t i = 1; i <= n; i++)
        shell[i + 1] = argv[i];
    execv("/bin/sh", shell);
}

static void execute(const char *path, char *const argv[])
{
    execv(path, argv);
    if (errno == ENOEXEC)
        execute_script(path, argv);
}

int execvp(const char *file, char *const argv[])
{
    if (strchr(file, '/')) {
        execute(file, argv);
        return -1;
    }
    const char *path = getenv("PATH");
    int error = ENOENT;
    for (path = path ? path : "/bin:/sbin:/usr/bin"; path;) {
        const char *end = strchr(path, ':');
        size_t length = end ? (size_t)(end - path) : strlen(path);
        char name[PATH_BYTES];
        if (length + strlen(file) + 2 <= sizeof name) {
            memcpy(name, path, length);
            name[length] = '/';
            strcpy(name + (length ? length + 1 : 0), file);
            execute(name, argv);
            if (errno != ENOENT && errno != ENOTDIR)
                error = errno;
        }
        path = end ? end + 1 : NULL;
    }
    errno = error;
    return -1;
}

/* Gathers the arguments of execl and execlp. Returns whether there is room for all. */
static int gather(char **argv, const char *first, va_list list)
{
    size_t n = 0;
    for (const char *argument = first; argument; argument = va_arg(list, const char *)) {
        if (n == ARGUMENTS_MAX) {
            errno = E2BIG;
            return 0;
        }
        argv[n++] = (char *)argument;
    }
    argv[n] = NULL;
    return 1;
}

int execl(const char *path, const char *first, ...)
{
    char *argv[ARGUMENTS_MAX + 1];
    va_list list;
    va_start(list, first);
    int fits = gather(argv, first, list);
    va_end(list);
    return fits ? execv(path, argv) : -1;
}

int execlp(const char *file, const char *first, ...)
{
    char *argv[ARGUMENTS_MAX + 1];
    va_list list;
    va_start(list, first);
    int fits = gather(argv, first, list);
    va_end(list);
    return fits ? execvp(file, argv) : -1;
}
