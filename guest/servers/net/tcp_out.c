/* TCP: what is sent, and when again. */

#include <string.h>
#include "socket.h"

#define MICROSECONDS 1000000u
#define RTO_FIRST MICROSECONDS      /* RFC 6298, section 2.1 */
#define RTO_MIN 200000u             /* the RFC's second is for clocks of its time; that of Linux is this */
#define RTO_MAX (60 * MICROSECONDS)
#define TRIES_MAX 12u
#define SYN_TRIES_MAX 6u
#define ACK_DELAY 40000u            /* RFC 9293, section 3.8.6.3: below half a second */
#define KEEPALIVE_IDLE (7200ull * MICROSECONDS)
#define KEEPALIVE_AGAIN (75ull * MICROSECONDS)
#define INITIAL_WINDOW (10 * MSS_MAX) /* RFC 6928 */

static uint32_t orders;
static uint32_t marked[(SOCKETS + 31) / 32];
static int some_wait_for_card;

/* RFC 6528: a clock of 4 microseconds, and an offset for each pair of ends. */
static uint32_t first_sequence(const struct socket *socket)
{
    uint32_t ends[4] = {socket->local, socket->peer, (uint32_t)socket->local_port << 16 | socket->peer_port,
                        0};
    return (uint32_t)(now / 4) + (uint32_t)keyed_hash(ends, sizeof ends);
}

void tcp_start(struct tcp *t, const struct socket *socket)
{
    memset(t, 0, sizeof *t);
    t->iss = t->una = t->nxt = t->max = t->recover = first_sequence(socket);
    t->mss = 536;                   /* until the peer says more */
    t->cwnd = INITIAL_WINDOW;
    t->ssthresh = ~0u / 2;
    t->rto = RTO_FIRST;
    t->order = ++orders;
}

void tcp_mark(struct socket *socket)
{
    marked[(socket - sockets) / 32] |= 1u << (socket - sockets) % 32;
}

void tcp_set_resend(struct tcp *t)
{
    t->resend_at = now + t->rto;
    expect(t->resend_at);
}

static int has_synchronized(const struct socket *socket)
{
    return socket->state != NET_SYN_SENT;
}

/* Makes the right edge of the window, which never moves back (RFC 9293, section 3.8.6). */
static uint32_t window_of(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    uint32_t room = RING_BYTES - 1 - socket->in.used;
    if (!has_synchronized(socket))
        return room;
    uint32_t edge = t->rcv_nxt + room;
    if (edge - t->advertised >= least(RING_BYTES / 2, t->mss) && before(t->advertised, edge))
        t->advertised = edge;
    return before(t->advertised, t->rcv_nxt) ? 0 : t->advertised - t->rcv_nxt;
}

/* Sends a segment with `bytes` of the ring from seq on. */
static int send_segment(struct socket *socket, uint32_t seq, uint32_t bytes, uint32_t flags)
{
    struct tcp *t = &socket->tcp;
    uint8_t *header = ip_data();
    uint32_t header_bytes = TCP_HEADER;
    if (flags & TCP_SYN) {
        header[20] = 2;             /* the option for the largest segment */
        header[21] = 4;
        put16(header + 22, MSS_MAX);
        header_bytes += 4;
    }
    put16(header, socket->local_port);
    put16(header + 2, socket->peer_port);
    put32(header + 4, seq);
    put32(header + 8, flags & TCP_ACK ? t->rcv_nxt : 0);
    put16(header + 12, header_bytes << 10 | flags);
    put16(header + 14, window_of(socket));
    put32(header + 16, 0);
    if (bytes)
        ring_get(&socket->out, seq - t->una, header + header_bytes, bytes);
    uint32_t all = header_bytes + bytes;
    put16(header + 16, checksum_between(socket->local, socket->peer, PROTOCOL_TCP, header, all));
    int result = ip_send(PROTOCOL_TCP, socket->local, socket->peer, all);
    if (result == -EAGAIN) {
        t->wants_output = 1;
        some_wait_for_card = 1;
    } else if (flags & TCP_ACK) {
        t->ack_now = 0;
        t->ack_at = 0;
        t->unacknowledged = 0;
    }
    return result;
}

static void send_syn(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    uint32_t flags = socket->state == NET_SYN_SENT ? TCP_SYN : TCP_SYN | TCP_ACK;
    if (send_segment(socket, t->iss, 0, flags) == -EAGAIN)
        return;
    t->nxt = t->iss + 1;
    if (before(t->max, t->nxt)) {
        t->max = t->nxt;
        t->timing = 1;
        t->timed = t->iss;
        t->timed_since = now;
    }
    tcp_set_resend(t);
}

/* How many bytes of data go into the next segment. Returns whether there is to be one at all (RFC 9293,
   section 3.8.6.2.1, and Nagle's algorithm). */
static int next_segment(const struct socket *socket, uint32_t *bytes, uint32_t *flags)
{
    const struct tcp *t = &socket->tcp;
    uint32_t sent = t->nxt - t->una, window = least(t->window, t->cwnd);
    uint32_t left = socket->out.used > sent ? socket->out.used - sent : 0;
    uint32_t allowed = window > sent ? window - sent : 0;
    int is_last;
    *bytes = least(least(left, allowed), t->mss);
    is_last = *bytes == left && sent <= socket->out.used;
    *flags = TCP_ACK | (is_last && *bytes ? TCP_PSH : 0);
    if (t->fin_wanted && is_last && (left == 0 || *bytes)) {
        /* The end is sent once, or again if it was lost. */
        *flags |= TCP_FIN;
        return 1;
    }
    if (*bytes == 0)
        return 0;
    return *bytes == t->mss || before(t->nxt, t->max) ||
           (is_last && (sent == 0 || socket->nodelay || t->fin_wanted)) || *bytes >= t->window_max / 2;
}

static void send_data(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    uint32_t bytes, flags;
    while (next_segment(socket, &bytes, &flags)) {
        if (send_segment(socket, t->nxt, bytes, flags) == -EAGAIN)
            return;
        if (before(t->nxt, t->max))
            socket->resent++;
        else if (!t->timing) {
            t->timing = 1;
            t->timed = t->nxt;
            t->timed_since = now;
        }
        t->nxt += bytes + (flags & TCP_FIN ? 1 : 0);
        if (before(t->max, t->nxt))
            t->max = t->nxt;
        if (!t->resend_at)
            tcp_set_resend(t);
        if (flags & TCP_FIN) {
            t->fin_sent = 1;
            return;
        }
    }
}

/* A window of nothing is probed, or an opening that is lost would stop all for ever (RFC 9293, section
   3.8.6.1). */
static void plan_probe(struct tcp *t, const struct socket *socket)
{
    if (t->nxt == t->una && socket->out.used && !t->resend_at && !t->wants_output) {
        t->probing = 1;
        tcp_set_resend(t);
    }
}

/* Nothing follows the end of what was sent. */
static int has_sent_all(const struct socket *socket)
{
    return socket->tcp.fin_sent && socket->tcp.nxt == socket->tcp.max;
}

void tcp_output(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    if (socket->state < NET_SYN_SENT)
        return;
    if (!t->syn_acked) {
        if (t->nxt == t->iss)
            send_syn(socket);
        return;
    }
    if (socket->state != NET_TIME_WAIT && !has_sent_all(socket))
        send_data(socket);
    /* The peer takes no acknowledgement whose number is behind what it has received, nor one beyond its
       window. */
    if (t->ack_now && !t->wants_output)
        send_segment(socket, t->probing ? t->una : t->max, 0, TCP_ACK);
    plan_probe(t, socket);
}

void tcp_flush(void)
{
    for (uint32_t word = 0; word < sizeof marked / sizeof *marked; word++)
        while (marked[word]) {
            uint32_t i = 0;
            while (!(marked[word] >> i & 1))
                i++;
            marked[word] &= ~(1u << i);
            struct socket *socket = &sockets[word * 32 + i];
            struct tcp *t = &socket->tcp;
            if (!socket->used || socket->kind != MINOR_TCP)
                continue;
            /* Every second full segment is acknowledged at once (RFC 5681, section 4.2), others soon. */
            if (t->unacknowledged >= 2 * t->mss)
                t->ack_now = 1;
            tcp_output(socket);
            if (t->unacknowledged && !t->ack_at && socket->used) {
                t->ack_at = now + ACK_DELAY;
                expect(t->ack_at);
            }
        }
}

void tcp_continue(void)
{
    if (!some_wait_for_card)
        return;
    some_wait_for_card = 0;
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++)
        if (s->used && s->kind == MINOR_TCP && s->tcp.wants_output) {
            s->tcp.wants_output = 0;
            tcp_output(s);
        }
}

void tcp_send_reset(struct socket *socket)
{
    if (socket->state >= NET_SYN_RECEIVED && socket->state != NET_TIME_WAIT)
        send_segment(socket, socket->tcp.max, 0, TCP_RST | TCP_ACK);
}

/* RFC 9293, section 3.10.7.1. */
void tcp_reset(const struct packet *packet)
{
    const uint8_t *from = packet->data;
    uint8_t *header = ip_data();
    uint32_t flags = from[13], used = packet->bytes - (from[12] >> 4) * 4u;
    used += (flags & TCP_SYN ? 1 : 0) + (flags & TCP_FIN ? 1 : 0);
    if (flags & TCP_RST || packet->is_broadcast)
        return;
    put16(header, get16(from + 2));
    put16(header + 2, get16(from));
    put32(header + 4, flags & TCP_ACK ? get32(from + 8) : 0);
    put32(header + 8, flags & TCP_ACK ? 0 : get32(from + 4) + used);
    put16(header + 12, TCP_HEADER << 10 | TCP_RST | (flags & TCP_ACK ? 0 : TCP_ACK));
    put16(header + 14, 0);
    put32(header + 16, 0);
    put16(header + 16, checksum_between(packet->to, packet->from, PROTOCOL_TCP, header, TCP_HEADER));
    ip_send(PROTOCOL_TCP, packet->to, packet->from, TCP_HEADER);
}

/* A byte beyond the window makes the peer say how large it is. A window that is not worth a segment is used
   after some time. */
static void probe(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    uint32_t bytes = least(least(t->window, t->mss), socket->out.used);
    if (bytes == 0)
        bytes = 1;
    if (send_segment(socket, t->nxt, bytes, TCP_ACK) != -EAGAIN && before(t->max, t->nxt + bytes))
        t->max = t->nxt + bytes;
}

/* Nothing was acknowledged in time: all is sent again, slowly at first (RFC 5681, section 3.1; RFC 6298, 5.4
   on). */
static void resend(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    uint32_t most = t->syn_acked ? TRIES_MAX : SYN_TRIES_MAX;
    t->resend_at = 0;
    if (++t->tries > most) {
        tcp_end(socket, -ETIMEDOUT);
        return;
    }
    t->rto = least(t->rto * 2, RTO_MAX);
    t->timing = 0;
    if (t->probing && socket->out.used) {
        probe(socket);
        tcp_set_resend(t);
        return;
    }
    t->probing = 0;
    if (t->tries == 1)
        tcp_slow_down(t, least(t->max - t->una, t->cwnd));
    t->recover = t->max;
    t->recovering = 0;
    t->duplicates = 0;
    t->cwnd = t->mss;
    t->nxt = t->una;
    t->wants_output = 0;
    tcp_output(socket);
    /* Also when the card was busy, or nothing can be sent now. */
    if (!t->resend_at && t->max != t->una)
        tcp_set_resend(t);
}

/* What was lost while there was no way is sent at once, not after what the timer has grown to. */
void tcp_hurry(void)
{
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++)
        if (s->used && s->kind == MINOR_TCP && s->tcp.resend_at) {
            s->tcp.rto = s->tcp.srtt ? least(s->tcp.rto, RTO_FIRST) : RTO_FIRST;
            s->tcp.resend_at = now + 1;
            expect(s->tcp.resend_at);
        }
}

static void keep_alive(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    if (++t->tries > TRIES_MAX) {
        tcp_end(socket, -ETIMEDOUT);
        return;
    }
    send_segment(socket, t->una - 1, 0, TCP_ACK);
    t->probe_at = now + KEEPALIVE_AGAIN;
    expect(t->probe_at);
}

static void check(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    if (is_due(t->end_at)) {
        tcp_end(socket, -ETIMEDOUT);
        return;
    }
    if (is_due(t->resend_at))
        resend(socket);
    if (socket->used && socket->keepalive && socket->state >= NET_ESTABLISHED && is_due(t->probe_at))
        keep_alive(socket);
    if (socket->used && is_due(t->ack_at)) {
        t->ack_now = 1;
        t->ack_at = 0;
        tcp_output(socket);
    }
}

void tcp_timer(void)
{
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++)
        if (s->used && s->kind == MINOR_TCP && s->state > NET_LISTENING)
            check(s);
}

/* RFC 6298, section 2. */
void tcp_measure(struct tcp *t, uint32_t microseconds)
{
    if (t->srtt == 0) {
        t->srtt = microseconds ? microseconds : 1;
        t->rttvar = microseconds / 2;
    } else {
        uint32_t difference = t->srtt > microseconds ? t->srtt - microseconds : microseconds - t->srtt;
        t->rttvar = t->rttvar - t->rttvar / 4 + difference / 4;
        t->srtt = t->srtt - t->srtt / 8 + microseconds / 8;
    }
    t->rto = t->srtt + 4 * t->rttvar;
    t->rto = t->rto < RTO_MIN ? RTO_MIN : least(t->rto, RTO_MAX);
}

void tcp_keepalive_from_now(struct socket *socket)
{
    if (!socket->keepalive)
        return;
    socket->tcp.probe_at = now + KEEPALIVE_IDLE;
    expect(socket->tcp.probe_at);
}

void tcp_wait_for_end(struct socket *socket, uint32_t microseconds)
{
    socket->tcp.end_at = now + microseconds;
    expect(socket->tcp.end_at);
}
