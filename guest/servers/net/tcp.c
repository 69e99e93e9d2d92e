/* TCP (RFC 9293): what programs do with connections. */

#include <string.h>
#include "socket.h"

#define BACKLOG_MAX 16u
/* When no program is there any more: for a peer that never ends its side, and for one that takes data
   slowly. */
#define END_MICROSECONDS 60000000u
#define REST_MICROSECONDS 300000000u

static int is_connected(const struct socket *socket)
{
    return socket->state >= NET_SYN_SENT;
}

int tcp_connect(struct socket *socket, uint32_t address, uint32_t port)
{
    if (socket->state == NET_LISTENING)
        return -EOPNOTSUPP;
    if (is_connected(socket))
        return socket->state == NET_SYN_SENT ? -EALREADY : -EISCONN;
    if (!port)
        return -EADDRNOTAVAIL;
    if (!address)
        address = LOOPBACK;
    uint32_t source = ip_source(address);
    if (!source)
        return -ENETUNREACH;
    if (!socket->local)
        socket->local = source;
    int result = socket_bind_any(socket, address, port);
    if (result == 0)
        result = socket_memory(socket);
    if (result)
        return result;
    for (const struct socket *s = sockets; s < sockets + SOCKETS; s++)
        if (s != socket && s->used && s->kind == MINOR_TCP && s->peer_port == port && s->peer == address &&
            s->local_port == socket->local_port && s->local == socket->local)
            return -EADDRINUSE;
    socket->peer = address;
    socket->peer_port = port;
    socket->state = NET_SYN_SENT;
    socket->error = 0;
    socket->in.first = socket->in.used = socket->out.first = socket->out.used = 0;
    tcp_start(&socket->tcp, socket);
    tcp_output(socket);
    return 0;
}

int tcp_listen(struct socket *socket, uint32_t backlog)
{
    if (is_connected(socket))
        return -EINVAL;
    int result = socket_bind_any(socket, 0, 0);
    if (result)
        return result;
    socket->tcp.backlog = least(backlog ? backlog : 1, BACKLOG_MAX);
    socket->state = NET_LISTENING;
    return 0;
}

struct socket *tcp_accepted(const struct socket *listener)
{
    struct socket *oldest = NULL;
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++)
        if (s->used && s->kind == MINOR_TCP && s->tcp.listener == listener - sockets + 1 && !s->tcp.handed &&
            s->state >= NET_ESTABLISHED && (!oldest || before(s->tcp.order, oldest->tcp.order)))
            oldest = s;
    return oldest;
}

int tcp_accept(struct socket *socket, struct net_accepted *accepted)
{
    if (socket->state != NET_LISTENING)
        return -EINVAL;
    struct socket *found = tcp_accepted(socket);
    if (!found)
        return -EAGAIN;
    found->tcp.handed = 1;
    found->tcp.token[0] = random_number();
    found->tcp.token[1] = random_number();
    accepted->peer = (struct net_address){swap32(found->peer), swap16(found->peer_port), 0};
    memcpy(accepted->token, found->tcp.token, sizeof accepted->token);
    return 0;
}

int tcp_take(struct socket *socket, const uint32_t token[2])
{
    if (socket->kind != MINOR_TCP || socket->state != NET_CLOSED || socket->bound)
        return -EINVAL;
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++) {
        if (!s->used || s->kind != MINOR_TCP || !s->tcp.listener || !s->tcp.handed ||
            memcmp(s->tcp.token, token, sizeof s->tcp.token))
            continue;
        socket_free(socket);
        *socket = *s;
        memset(s, 0, sizeof *s);
        socket->attached = 1;
        socket->tcp.listener = 0;
        tcp_mark(socket);
        return 0;
    }
    return -ECONNABORTED;
}

/* Its connections that nobody has accepted end with it. */
static void close_listener(struct socket *listener)
{
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++)
        if (s->used && s->kind == MINOR_TCP && s->tcp.listener == listener - sockets + 1) {
            tcp_send_reset(s);
            socket_free(s);
        }
    socket_free(listener);
}

int tcp_shutdown(struct socket *socket)
{
    if (socket->state < NET_SYN_RECEIVED)
        return -ENOTCONN;
    if (socket->tcp.fin_wanted)
        return 0;
    socket->tcp.fin_wanted = 1;
    if (socket->state == NET_ESTABLISHED || socket->state == NET_SYN_RECEIVED)
        socket->state = NET_FIN_WAIT_1;
    else if (socket->state == NET_CLOSE_WAIT)
        socket->state = NET_LAST_ACK;
    tcp_output(socket);
    return 0;
}

void tcp_close(struct socket *socket)
{
    switch (socket->state) {
    case NET_LISTENING:
        close_listener(socket);
        break;
    case NET_CLOSED:
    case NET_SYN_SENT:
        socket_free(socket);
        break;
    case NET_TIME_WAIT:
        tcp_enter_time_wait(socket);
        break;
    default:
        /* Data that is never read must not look as if it had been (RFC 2525, section 2.17). */
        if (socket->in.used || socket->tcp.range_count) {
            tcp_send_reset(socket);
            socket_free(socket);
            break;
        }
        tcp_wait_for_end(socket, socket->state == NET_FIN_WAIT_2 ? END_MICROSECONDS : REST_MICROSECONDS);
        tcp_shutdown(socket);
    }
}

uint32_t tcp_room(const struct socket *socket)
{
    return RING_BYTES - socket->out.used;
}

int tcp_can_write(const struct socket *socket)
{
    switch (socket->state) {
    case NET_CLOSED:
    case NET_LISTENING:
        return socket->peer_port ? -EPIPE : -ENOTCONN;
    case NET_SYN_SENT:
    case NET_SYN_RECEIVED:
        return 0;
    case NET_ESTABLISHED:
    case NET_CLOSE_WAIT:
        return (int)tcp_room(socket);
    default:
        return -EPIPE;
    }
}

int tcp_at_end(const struct socket *socket)
{
    return socket->no_more || socket->tcp.fin_received || socket->state == NET_CLOSED ||
           socket->state == NET_TIME_WAIT;
}

/* The window is open again when so much can be received that it is worth a segment of its own (RFC 9293,
   section 3.8.6.2.2). */
void tcp_read(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    uint32_t edge = t->rcv_nxt + RING_BYTES - 1 - socket->in.used;
    if (socket->state >= NET_ESTABLISHED && socket->state <= NET_FIN_WAIT_2 && !t->fin_received &&
        edge - t->advertised >= RING_BYTES / 4) {
        t->ack_now = 1;
        tcp_mark(socket);
    }
}

void tcp_unreachable(uint32_t from, uint32_t to, uint32_t from_port, uint32_t to_port, uint32_t seq,
                     int error)
{
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++) {
        if (!s->used || s->kind != MINOR_TCP || s->local != from || s->peer != to ||
            s->local_port != from_port || s->peer_port != to_port)
            continue;
        /* It must be about something in flight, and ends no connection that is established (RFC 5927). */
        if (s->state == NET_SYN_SENT && seq == s->tcp.iss)
            tcp_end(s, error);
        return;
    }
}
