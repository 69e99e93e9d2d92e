/* Sockets of the internet. */

#ifndef SYS_SOCKET_H
#define SYS_SOCKET_H

#include <sys/types.h>

typedef uint32_t socklen_t;
typedef uint16_t sa_family_t;

struct sockaddr {
    sa_family_t sa_family;
    char sa_data[14];
};

struct sockaddr_storage {
    sa_family_t ss_family;
    char ss_data[26];
    uint32_t ss_align;
};

#define AF_UNSPEC 0
#define AF_INET 2
#define PF_UNSPEC AF_UNSPEC
#define PF_INET AF_INET

#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define SOCK_NONBLOCK 04000     /* O_NONBLOCK */
#define SOCK_CLOEXEC 02000000   /* O_CLOEXEC */

#define SOL_SOCKET 1
#define SO_REUSEADDR 2
#define SO_TYPE 3
#define SO_ERROR 4
#define SO_BROADCAST 6
#define SO_KEEPALIVE 9
#define SO_ACCEPTCONN 30

#define SOMAXCONN 16

#define MSG_PEEK 2
#define MSG_DONTWAIT 0x40
#define MSG_WAITALL 0x100
#define MSG_NOSIGNAL 0x4000

#define SHUT_RD 0
#define SHUT_WR 1
#define SHUT_RDWR 2

int socket(int domain, int type, int protocol);
int bind(int fd, const struct sockaddr *address, socklen_t bytes);
int listen(int fd, int backlog);
int accept(int fd, struct sockaddr *address, socklen_t *bytes);
int connect(int fd, const struct sockaddr *address, socklen_t bytes);
int shutdown(int fd, int how);
ssize_t send(int fd, const void *from, size_t bytes, int flags);
ssize_t sendto(int fd, const void *from, size_t bytes, int flags, const struct sockaddr *address,
               socklen_t address_bytes);
ssize_t recv(int fd, void *to, size_t bytes, int flags);
ssize_t recvfrom(int fd, void *to, size_t bytes, int flags, struct sockaddr *address,
                 socklen_t *address_bytes);
int getsockname(int fd, struct sockaddr *address, socklen_t *bytes);
int getpeername(int fd, struct sockaddr *address, socklen_t *bytes);
int setsockopt(int fd, int level, int option, const void *value, socklen_t bytes);
int getsockopt(int fd, int level, int option, void *value, socklen_t *bytes);

#endif
