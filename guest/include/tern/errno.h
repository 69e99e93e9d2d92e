/* Errors. Calls return them negated. Those of POSIX have Linux's numbers. */

#ifndef TERN_ERRNO_H
#define TERN_ERRNO_H

#define EPERM 1
#define ENOENT 2
#define ESRCH 3
#define EINTR 4
#define EIO 5
#define ENXIO 6
#define E2BIG 7
#define ENOEXEC 8
#define EBADF 9
#define ECHILD 10
#define EAGAIN 11
#define ENOMEM 12
#define EACCES 13
#define EFAULT 14
#define EBUSY 16
#define EEXIST 17
#define EXDEV 18
#define ENODEV 19
#define ENOTDIR 20
#define EISDIR 21
#define EINVAL 22
#define ENFILE 23
#define EMFILE 24
#define ENOTTY 25
#define EFBIG 27
#define ENOSPC 28
#define ESPIPE 29
#define EROFS 30
#define EMLINK 31
#define EPIPE 32
#define EDOM 33
#define ERANGE 34
#define ENAMETOOLONG 36
#define ENOSYS 38
#define ENOTEMPTY 39
#define ELOOP 40
#define ENOTSOCK 88
#define EDESTADDRREQ 89
#define EMSGSIZE 90
#define EPROTOTYPE 91
#define ENOPROTOOPT 92
#define EPROTONOSUPPORT 93
#define EOPNOTSUPP 95
#define EAFNOSUPPORT 97
#define EADDRINUSE 98
#define EADDRNOTAVAIL 99
#define ENETDOWN 100
#define ENETUNREACH 101
#define ECONNABORTED 103
#define ECONNRESET 104
#define ENOBUFS 105
#define EISCONN 106
#define ENOTCONN 107
#define ETIMEDOUT 110
#define ECONNREFUSED 111
#define EHOSTUNREACH 113
#define EALREADY 114
#define EINPROGRESS 115

/* Of the kernel's own. */
#define EDEADEND 200     /* the endpoint's process is gone; another may have taken its place */
#define ETRAPDENIED 201  /* no right to this trap */
#define EDESTDENIED 202  /* no right to send to this destination */
#define ECALLDENIED 203  /* no right to this kernel call */
#define EPORTDENIED 204  /* no right to this port, or to this way of reaching ports */
#define EIRQDENIED 205   /* no right to this interrupt line */
#define EGRANT 206       /* no such grant, or it does not allow this */
#define EDEADLOCK 207    /* each of two processes sends to the other */
#define ERESTART 208     /* the service was replaced while the request was in it: send it again */

#endif
