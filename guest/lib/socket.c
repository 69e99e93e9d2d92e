/* Sockets: files of the network server (tern/net.h). */

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <tern/net.h>
#include <unistd.h>

static int fail(int error)
{
    errno = error;
    return -1;
}

/* A request to a socket. Files of others do not know it. */
static int ask(int fd, unsigned long request, const void *argument)
{
    int result = ioctl(fd, request, argument);
    if (result < 0 && errno == ENOTTY)
        errno = ENOTSOCK;
    return result;
}

int socket(int domain, int type, int protocol)
{
    int flags = O_RDWR | (type & (SOCK_NONBLOCK | SOCK_CLOEXEC));
    int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (domain != AF_INET)
        return fail(EAFNOSUPPORT);
    if (kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP))
        return open("/dev/tcp", flags);
    if (kind == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP))
        return open("/dev/udp", flags);
    if (kind == SOCK_DGRAM && protocol == IPPROTO_ICMP)
        return open("/dev/icmp", flags);
    return fail(EPROTONOSUPPORT);
}

static int address_in(const struct sockaddr *from, socklen_t bytes, struct net_address *to)
{
    struct sockaddr_in address;
    if (!from || bytes < sizeof address)
        return fail(EINVAL);
    memcpy(&address, from, sizeof address);
    if (address.sin_family != AF_INET)
        return fail(EAFNOSUPPORT);
    *to = (struct net_address){address.sin_addr.s_addr, address.sin_port, 0};
    return 0;
}

static void address_out(const struct net_address *from, struct sockaddr *to, socklen_t *bytes)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = from->port, .sin_addr = {from->address}};
    if (!to || !bytes)
        return;
    memcpy(to, &address, *bytes < sizeof address ? *bytes : sizeof address);
    *bytes = sizeof address;
}

int bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
    struct net_address own;
    return address_in(address, bytes, &own) < 0 ? -1 : ask(fd, NET_BIND, &own);
}

int connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    struct net_address peer;
    return address_in(address, bytes, &peer) < 0 ? -1 : ask(fd, NET_CONNECT, &peer);
}

int listen(int fd, int backlog)
{
    uint32_t most = backlog < 1 ? 1 : backlog;
    return ask(fd, NET_LISTEN, &most);
}

/* The descriptor comes first: without one no connection is taken. */
int accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
    struct net_accepted accepted;
    int made = open("/dev/tcp", O_RDWR);
    if (made < 0)
        return -1;
    if (ask(fd, NET_ACCEPT, &accepted) < 0 || ask(made, NET_TAKE, accepted.token) < 0) {
        int error = errno;
        close(made);
        return fail(error);
    }
    address_out(&accepted.peer, address, bytes);
    return made;
}

int shutdown(int fd, int how)
{
    uint32_t what = how;
    return ask(fd, NET_SHUTDOWN, &what);
}

static ssize_t give(int fd, const void *from, size_t bytes, int flags, const struct net_address *to)
{
    struct {
        struct net_message message;
        uint8_t data[NET_MESSAGE_MAX];
    } m;
    m.message = (struct net_message){.address = *to, .flags = flags & MSG_DONTWAIT ? NET_DONTWAIT : 0,
                                     .bytes = bytes};
    memcpy(m.data, from, bytes);
    int result = ask(fd, NET_SIZE(NET_SEND, bytes), &m);
    if (result < 0 && errno == EPIPE && !(flags & MSG_NOSIGNAL))
        raise(SIGPIPE), errno = EPIPE;
    return result;
}

ssize_t sendto(int fd, const void *from, size_t bytes, int flags, const struct sockaddr *address,
               socklen_t address_bytes)
{
    struct net_socket socket;
    struct net_address to = {0};
    if (address && address_in(address, address_bytes, &to) < 0)
        return -1;
    if (ask(fd, NET_SOCKET, &socket) < 0)
        return -1;
    if (socket.kind != MINOR_TCP)
        return bytes > NET_MESSAGE_MAX ? fail(EMSGSIZE) : give(fd, from, bytes, flags, &to);
    /* A stream takes all, unless it must not wait. */
    for (size_t done = 0;;) {
        size_t part = bytes - done < NET_MESSAGE_MAX ? bytes - done : NET_MESSAGE_MAX;
        ssize_t result = give(fd, (const char *)from + done, part, flags, &to);
        if (result < 0)
            return done ? (ssize_t)done : -1;
        done += result;
        if (done >= bytes || (size_t)result < part)
            return done;
    }
}

ssize_t send(int fd, const void *from, size_t bytes, int flags)
{
    return flags ? sendto(fd, from, bytes, flags, NULL, 0) : write(fd, from, bytes);
}

static ssize_t take(int fd, void *to, size_t bytes, int flags, struct sockaddr *address,
                    socklen_t *address_bytes)
{
    struct {
        struct net_message message;
        uint8_t data[NET_MESSAGE_MAX];
    } m;
    size_t room = bytes < NET_MESSAGE_MAX ? bytes : NET_MESSAGE_MAX;
    memset(&m.message, 0, sizeof m.message);
    m.message.flags = (flags & MSG_DONTWAIT ? NET_DONTWAIT : 0) | (flags & MSG_PEEK ? NET_PEEK : 0);
    int result = ask(fd, NET_SIZE(NET_RECEIVE, room), &m);
    if (result < 0)
        return -1;
    if ((size_t)result < room)
        room = result;
    memcpy(to, m.data, room);
    address_out(&m.message.address, address, address_bytes);
    return room;
}

ssize_t recvfrom(int fd, void *to, size_t bytes, int flags, struct sockaddr *address,
                 socklen_t *address_bytes)
{
    size_t done = 0;
    for (;;) {
        int simple = !(flags & ~MSG_WAITALL) && !address;
        ssize_t part = simple ? read(fd, (char *)to + done, bytes - done)
                              : take(fd, (char *)to + done, bytes - done, flags, address, address_bytes);
        if (part < 0)
            return done ? (ssize_t)done : -1;
        done += part;
        if (part == 0 || done == bytes || !(flags & MSG_WAITALL) || flags & (MSG_PEEK | MSG_DONTWAIT))
            return done;
    }
}

ssize_t recv(int fd, void *to, size_t bytes, int flags)
{
    return recvfrom(fd, to, bytes, flags, NULL, NULL);
}

int getsockname(int fd, struct sockaddr *address, socklen_t *bytes)
{
    struct net_socket socket;
    if (ask(fd, NET_SOCKET, &socket) < 0)
        return -1;
    address_out(&socket.local, address, bytes);
    return 0;
}

int getpeername(int fd, struct sockaddr *address, socklen_t *bytes)
{
    struct net_socket socket;
    if (ask(fd, NET_SOCKET, &socket) < 0)
        return -1;
    if (socket.peer.port == 0)
        return fail(ENOTCONN);
    address_out(&socket.peer, address, bytes);
    return 0;
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t bytes)
{
    struct net_option setting = {0};
    if (!value || bytes < sizeof(int))
        return fail(EINVAL);
    memcpy(&setting.value, value, sizeof(int));
    if (level == SOL_SOCKET && option == SO_REUSEADDR)
        setting.option = NET_OPTION_REUSE;
    else if (level == SOL_SOCKET && option == SO_KEEPALIVE)
        setting.option = NET_OPTION_KEEPALIVE;
    else if (level == IPPROTO_TCP && option == TCP_NODELAY)
        setting.option = NET_OPTION_NODELAY;
    else if (level == SOL_SOCKET && option == SO_BROADCAST)
        return 0; /* everybody may */
    else
        return fail(ENOPROTOOPT);
    return ask(fd, NET_OPTION, &setting);
}

int getsockopt(int fd, int level, int option, void *value, socklen_t *bytes)
{
    struct net_socket socket;
    int result;
    if (!value || !bytes || *bytes < sizeof result)
        return fail(EINVAL);
    if (level != SOL_SOCKET || (option != SO_ERROR && option != SO_TYPE && option != SO_ACCEPTCONN))
        return fail(ENOPROTOOPT);
    if (option == SO_ERROR ? ask(fd, NET_ERROR, &result) < 0 : ask(fd, NET_SOCKET, &socket) < 0)
        return -1;
    if (option == SO_TYPE)
        result = socket.kind == MINOR_TCP ? SOCK_STREAM : SOCK_DGRAM;
    else if (option == SO_ACCEPTCONN)
        result = socket.state == NET_LISTENING;
    memcpy(value, &result, sizeof result);
    *bytes = sizeof result;
    return 0;
}
