/* The table of sockets, their ports, and datagrams that wait. */

#include <string.h>
#include "socket.h"

struct socket sockets[SOCKETS];

void ring_put(struct ring *ring, uint32_t at, const uint8_t *from, uint32_t bytes)
{
    uint32_t place = (ring->first + at) % RING_BYTES, part = least(bytes, RING_BYTES - place);
    memcpy(ring->data + place, from, part);
    memcpy(ring->data, from + part, bytes - part);
}

void ring_get(const struct ring *ring, uint32_t at, uint8_t *to, uint32_t bytes)
{
    uint32_t place = (ring->first + at) % RING_BYTES, part = least(bytes, RING_BYTES - place);
    memcpy(to, ring->data + place, part);
    memcpy(to + part, ring->data, bytes - part);
}

void ring_drop(struct ring *ring, uint32_t bytes)
{
    ring->first = (ring->first + bytes) % RING_BYTES;
    ring->used -= bytes;
}

void ring_free(struct ring *ring)
{
    if (ring->data)
        ring_release(ring->data);
    *ring = (struct ring){0};
}

/* One that waits in TIME-WAIT may be needed for a new connection. */
static struct socket *oldest_waiting(void)
{
    struct socket *oldest = NULL;
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++)
        if (s->used && !s->attached && s->state == NET_TIME_WAIT &&
            (!oldest || s->tcp.end_at < oldest->tcp.end_at))
            oldest = s;
    return oldest;
}

struct socket *socket_new(uint32_t kind)
{
    struct socket *socket = sockets;
    while (socket < sockets + SOCKETS && socket->used)
        socket++;
    if (socket == sockets + SOCKETS) {
        socket = oldest_waiting();
        if (!socket)
            return NULL;
        socket_free(socket);
    }
    memset(socket, 0, sizeof *socket);
    socket->used = 1;
    socket->kind = kind;
    return socket;
}

void socket_free(struct socket *socket)
{
    ring_free(&socket->in);
    ring_free(&socket->out);
    memset(socket, 0, sizeof *socket);
}

struct socket *socket_of_minor(uint32_t minor)
{
    struct socket *socket = &sockets[minor - NET_FIRST_SOCKET];
    return minor >= NET_FIRST_SOCKET && minor < NET_FIRST_SOCKET + SOCKETS && socket->used && socket->attached
               ? socket : NULL;
}

uint32_t minor_of(const struct socket *socket)
{
    return (uint32_t)(socket - sockets) + NET_FIRST_SOCKET;
}

void socket_close(struct socket *socket)
{
    socket->attached = 0;
    if (socket->kind == MINOR_TCP)
        tcp_close(socket);
    else
        socket_free(socket);
}

int socket_memory(struct socket *socket)
{
    if (!socket->in.data)
        socket->in.data = ring_allocate();
    if (!socket->out.data && socket->kind == MINOR_TCP)
        socket->out.data = ring_allocate();
    return socket->in.data && (socket->out.data || socket->kind != MINOR_TCP) ? 0 : -ENOBUFS;
}

static int is_taken(const struct socket *socket, uint32_t address, uint32_t port)
{
    for (const struct socket *s = sockets; s < sockets + SOCKETS; s++) {
        if (!s->used || s == socket || s->kind != socket->kind || s->local_port != port || !s->bound ||
            (s->local && address && s->local != address))
            continue;
        /* Connections of a server that has ended keep no new one from listening (SO_REUSEADDR). */
        if (!(socket->reuse && (s->state == NET_TIME_WAIT || (s->kind == MINOR_TCP && s->peer_port))))
            return 1;
    }
    return 0;
}

int socket_bind(struct socket *socket, uint32_t address, uint32_t port)
{
    if (socket->bound || socket->kind == MINOR_ICMP)
        return -EINVAL;
    if (address && !is_own_address(address) && address != BROADCAST)
        return -EADDRNOTAVAIL;
    socket->local = address;
    if (!port)
        return socket_bind_any(socket, 0, 0);
    if (is_taken(socket, address, port))
        return -EADDRINUSE;
    int result = socket->kind == MINOR_UDP ? socket_memory(socket) : 0;
    if (result)
        return result;
    socket->local_port = port;
    socket->bound = 1;
    return 0;
}

/* A free one: a random one (RFC 6056, section 3.3.1), or, for a connection, the one after that of the connection
   before (section 3.3.3): its peer may remember for minutes what has been closed (TIME-WAIT), and refuse its port. */
int socket_bind_any(struct socket *socket, uint32_t peer, uint32_t peer_port)
{
    static uint32_t connections;
    uint32_t ends[4] = {socket->local, peer, peer_port, 0}, ports = 65536 - FIRST_PORT;
    uint32_t first = peer ? (uint32_t)keyed_hash(ends, sizeof ends) + connections++ : random_number();
    if (socket->bound || socket->kind == MINOR_ICMP)
        return 0;
    for (uint32_t i = 0; i < ports; i++) {
        uint32_t port = FIRST_PORT + (first % ports + i) % ports;
        if (!is_taken(socket, socket->local, port))
            return socket_bind(socket, socket->local, port);
    }
    return -EADDRINUSE;
}

/* Of datagrams: only the peer's are taken from now on. */
int socket_connect(struct socket *socket, uint32_t address, uint32_t port)
{
    if (socket->kind == MINOR_TCP)
        return tcp_connect(socket, address, port);
    if (!port && socket->kind == MINOR_UDP)
        return -EADDRNOTAVAIL;
    if (!address)
        address = LOOPBACK;
    if (!ip_source(address))
        return -ENETUNREACH;
    int result = socket_bind_any(socket, 0, 0);
    if (result)
        return result;
    socket->peer = address;
    socket->peer_port = port;
    return 0;
}

void socket_fail(struct socket *socket, int error)
{
    socket->error = error;
    socket_changed(socket);
}

int socket_take_error(struct socket *socket)
{
    int error = socket->error;
    socket->error = 0;
    return error;
}

void socket_describe(const struct socket *s, struct net_socket *to)
{
    *to = (struct net_socket){.local = {swap32(s->local), swap16(s->local_port), 0},
                              .peer = {swap32(s->peer), swap16(s->peer_port), 0},
                              .kind = s->kind,
                              .state = s->state,
                              .received = s->in.used,
                              .unsent = s->out.used,
                              .resent = s->resent,
                              .error = -s->error};
}

void sockets_list(struct net_sockets *list)
{
    uint32_t i = list->first;
    list->count = 0;
    for (; i < SOCKETS && list->count < NET_SOCKETS_AT_ONCE; i++)
        if (sockets[i].used)
            socket_describe(&sockets[i], &list->sockets[list->count++]);
    list->first = i < SOCKETS ? i : 0;
}

uint32_t socket_can(struct socket *s)
{
    if (s->kind != MINOR_TCP)
        return (s->in.used || s->error ? 1 : 0) | 2;
    if (s->state == NET_LISTENING)
        return tcp_accepted(s) ? 1 : 0;
    return (s->in.used || s->error || tcp_at_end(s) ? 1 : 0) |
           (tcp_can_write(s) && s->state != NET_SYN_SENT ? 2 : 0);
}

/* What precedes a datagram in the ring. */
struct datagram {
    uint32_t from, port, bytes;
};

void datagram_put(struct socket *socket, uint32_t from, uint32_t port, const uint8_t *data, uint32_t bytes)
{
    struct datagram header = {from, port, bytes};
    if (socket_memory(socket) || bytes > NET_MESSAGE_MAX ||
        RING_BYTES - socket->in.used < sizeof header + bytes)
        return;
    ring_put(&socket->in, socket->in.used, (uint8_t *)&header, sizeof header);
    ring_put(&socket->in, socket->in.used + sizeof header, data, bytes);
    socket->in.used += sizeof header + bytes;
    socket_changed(socket);
}

int datagram_get(struct socket *socket, struct net_message *message, uint8_t *to, uint32_t room, int peek)
{
    struct datagram header;
    if (!socket->in.used)
        return socket->error ? socket_take_error(socket) : -EAGAIN;
    ring_get(&socket->in, 0, (uint8_t *)&header, sizeof header);
    uint32_t bytes = least(header.bytes, room);
    ring_get(&socket->in, sizeof header, to, bytes);
    message->address = (struct net_address){swap32(header.from), swap16(header.port), 0};
    message->bytes = header.bytes;
    if (!peek)
        ring_drop(&socket->in, sizeof header + header.bytes);
    return (int)bytes;
}
