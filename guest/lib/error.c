/* Errors and signals in words. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

int errno;

static const struct {
    short number;
    const char *text;
} errors[] = {
    { 0, "Success" },
    { EPERM, "Operation not permitted" },
    { ENOENT, "No such file or directory" },
    { ESRCH, "No such process" },
    { EINTR, "Interrupted by a signal" },
    { EIO, "Input or output error" },
    { E2BIG, "Arguments too long" },
    { ENOEXEC, "Not a program" },
    { EBADF, "Bad file descriptor" },
    { ECHILD, "No child processes" },
    { EAGAIN, "Try again" },
    { ENOMEM, "Out of memory" },
    { EACCES, "Permission denied" },
    { EFAULT, "Bad address" },
    { EBUSY, "Device or resource busy" },
    { EEXIST, "File exists" },
    { EXDEV, "Link to another file system" },
    { ENODEV, "No such device" },
    { ENOTDIR, "Not a directory" },
    { EISDIR, "Is a directory" },
    { EINVAL, "Invalid argument" },
    { ENFILE, "Too many open files in the system" },
    { EMFILE, "Too many open files" },
    { ENOTTY, "Not a terminal" },
    { EFBIG, "File too large" },
    { ENOSPC, "No space left on device" },
    { ESPIPE, "Cannot seek" },
    { EROFS, "Read-only file system" },
    { EMLINK, "Too many links" },
    { EPIPE, "Broken pipe" },
    { EDOM, "Argument outside of the function's domain" },
    { ERANGE, "Result out of range" },
    { ENAMETOOLONG, "Name too long" },
    { ENOSYS, "Function not there" },
    { ENOTEMPTY, "Directory not empty" },
    { ELOOP, "Too many symbolic links" },
    { ETIMEDOUT, "Timed out" },
    { ECONNREFUSED, "Connection refused" },
    { EDEADEND, "Process of the endpoint is gone" },
    { ETRAPDENIED, "No right to this trap" },
    { EDESTDENIED, "No right to this destination" },
    { ECALLDENIED, "No right to this kernel call" },
    { EPORTDENIED, "No right to this port" },
    { EIRQDENIED, "No right to this interrupt" },
    { EGRANT, "Bad grant" },
    { EDEADLOCK, "Deadlock" },
    { ERESTART, "Service was replaced" },
};

static const struct {
    short number;
    const char *text;
} signals[] = {
    { SIGHUP, "Hang-up" },          { SIGINT, "Interrupt" },
    { SIGQUIT, "Quit" },            { SIGILL, "Illegal instruction" },
    { SIGTRAP, "Breakpoint" },      { SIGABRT, "Aborted" },
    { SIGBUS, "Bus error" },        { SIGFPE, "Arithmetic exception" },
    { SIGKILL, "Killed" },          { SIGUSR1, "User signal 1" },
    { SIGSEGV, "Segmentation fault" }, { SIGUSR2, "User signal 2" },
    { SIGPIPE, "Broken pipe" },     { SIGALRM, "Alarm" },
    { SIGTERM, "Terminated" },      { SIGCHLD, "Child ended" },
    { SIGCONT, "Continued" },       { SIGSTOP, "Stopped" },
    { SIGTSTP, "Stopped" },
};

char *strerror(int error)
{
    static char unknown[32];
    size_t n;

    for (n = 0; n < sizeof errors / sizeof *errors; n++)
        if (errors[n].number == error)
            return (char *)errors[n].text;
    snprintf(unknown, sizeof unknown, "Error %d", error);
    return unknown;
}

char *strsignal(int signal)
{
    static char unknown[32];
    size_t n;

    for (n = 0; n < sizeof signals / sizeof *signals; n++)
        if (signals[n].number == signal)
            return (char *)signals[n].text;
    snprintf(unknown, sizeof unknown, "Signal %d", signal);
    return unknown;
}
