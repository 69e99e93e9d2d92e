/* Errors and signals in words. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

int errno;

struct text {
    short number;
    const char *text;
};

static const struct text errors[] = {
    { 0, "Success" },
    { EPERM, "Operation not permitted" },
    { ENOENT, "No such file or directory" },
    { ESRCH, "No such process" },
    { EINTR, "Interrupted by a signal" },
    { EIO, "Input or output error" },
    { ENXIO, "No such device or address" },
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
    { ENOTSOCK, "Not a socket" },
    { EDESTADDRREQ, "Destination address required" },
    { EMSGSIZE, "Message too long" },
    { EPROTOTYPE, "Wrong type of socket" },
    { ENOPROTOOPT, "No such option" },
    { EPROTONOSUPPORT, "No such protocol" },
    { EOPNOTSUPP, "Operation not supported" },
    { EAFNOSUPPORT, "No such family of addresses" },
    { EADDRINUSE, "Address already in use" },
    { EADDRNOTAVAIL, "Not an address of this machine" },
    { ENETDOWN, "Network is down" },
    { ENETUNREACH, "Network is unreachable" },
    { ECONNABORTED, "Connection aborted" },
    { ECONNRESET, "Connection reset" },
    { ENOBUFS, "No buffers" },
    { EISCONN, "Already connected" },
    { ENOTCONN, "Not connected" },
    { ETIMEDOUT, "Timed out" },
    { ECONNREFUSED, "Connection refused" },
    { EHOSTUNREACH, "No route to host" },
    { EALREADY, "Already in progress" },
    { EINPROGRESS, "Now in progress" },
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

static const struct text signals[] = {
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

/* The text of a number, or, if the table lacks it, that of `format` in `unknown`. */
static char *text_of(const struct text *table, size_t count, int number, const char *format, char unknown[32])
{
    for (size_t n = 0; n < count; n++)
        if (table[n].number == number)
            return (char *)table[n].text;
    snprintf(unknown, 32, format, number);
    return unknown;
}

char *strerror(int error)
{
    static char unknown[32];

    return text_of(errors, sizeof errors / sizeof *errors, error, "Error %d", unknown);
}

char *strsignal(int signal)
{
    static char unknown[32];

    return text_of(signals, sizeof signals / sizeof *signals, signal, "Signal %d", unknown);
}
