/* TCP: segments that come in (RFC 9293, section 3.10.7). */

#include <string.h>
#include "socket.h"

#define TIME_WAIT 60000000u         /* twice a segment's life of 30 s */
#define HALF_OPEN 30000000u         /* for the third segment of a handshake */
#define ORPHAN 60000000u
#define CHALLENGE_PAUSE 500000u
#define MSS_MIN 64u                 /* a peer that wants less would make us send headers alone */

void tcp_enter_time_wait(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    socket->state = NET_TIME_WAIT;
    t->resend_at = 0;
    tcp_wait_for_end(socket, TIME_WAIT);
    ring_free(&socket->out);
    if (!socket->attached)
        ring_free(&socket->in);
}

void tcp_end(struct socket *socket, int error)
{
    struct tcp *t = &socket->tcp;
    if (!socket->attached) {
        socket_free(socket);
        return;
    }
    int was_over = socket->state == NET_TIME_WAIT;
    socket->state = NET_CLOSED;
    t->resend_at = t->ack_at = t->end_at = t->probe_at = 0;
    t->fin_received = 1;
    socket->out.used = 0;
    socket_fail(socket, was_over ? socket->error : error);
}

static struct socket *find(const struct packet *packet, uint32_t from_port, uint32_t to_port)
{
    static uint32_t last;           /* the same connection as before is the likeliest */
    struct socket *listener = NULL;
    for (uint32_t i = 0; i < SOCKETS; i++) {
        uint32_t index = (last + i) % SOCKETS;
        struct socket *s = &sockets[index];
        if (!s->used || s->kind != MINOR_TCP || s->local_port != to_port || s->state == NET_CLOSED)
            continue;
        if (s->state == NET_LISTENING && (!s->local || s->local == packet->to))
            listener = s;
        else if (s->peer == packet->from && s->peer_port == from_port && s->local == packet->to) {
            last = index;
            return s;
        }
    }
    return listener;
}

static uint32_t option_mss(const uint8_t *options, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes && options[at] != 0;) {
        if (options[at] == 1) {
            at++;
            continue;
        }
        if (at + 2 > bytes || options[at + 1] < 2 || at + options[at + 1] > bytes)
            break;
        if (options[at] == 2 && options[at + 1] == 4)
            return get16(options + at + 2);
        at += options[at + 1];
    }
    return 0;
}

static void take_mss(struct tcp *t, const struct segment *segment)
{
    uint32_t mss = segment->mss ? segment->mss : 536;
    t->mss = least(mss < MSS_MIN ? MSS_MIN : mss, MSS_MAX);
}

/* ---- Connections begin ---- */

/* The oldest of half-open connections gives way to a new one, so that those who never answer keep nobody
   out. */
static int has_place(const struct socket *listener)
{
    struct socket *oldest = NULL;
    uint32_t count = 0;
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++) {
        if (!s->used || s->kind != MINOR_TCP || s->tcp.listener != listener - sockets + 1)
            continue;
        count++;
        if (s->state == NET_SYN_RECEIVED && (!oldest || before(s->tcp.order, oldest->tcp.order)))
            oldest = s;
    }
    if (count < listener->tcp.backlog)
        return 1;
    if (oldest)
        socket_free(oldest);
    return oldest != NULL;
}

static void to_listener(struct socket *listener, const struct packet *packet, const struct segment *segment)
{
    if (segment->flags & TCP_RST || packet->is_broadcast)
        return;
    if (segment->flags & TCP_ACK) {
        tcp_reset(packet);
        return;
    }
    if (!(segment->flags & TCP_SYN) || !has_place(listener))
        return;
    struct socket *s = socket_new(MINOR_TCP);
    if (!s)
        return;
    s->local = packet->to;
    s->local_port = listener->local_port;
    s->peer = packet->from;
    s->peer_port = get16(packet->data);
    s->bound = 1;
    s->nodelay = listener->nodelay;
    s->keepalive = listener->keepalive;
    s->state = NET_SYN_RECEIVED;
    tcp_start(&s->tcp, s);
    s->tcp.listener = listener - sockets + 1;
    s->tcp.irs = segment->seq;
    s->tcp.rcv_nxt = s->tcp.advertised = segment->seq + 1;
    take_mss(&s->tcp, segment);
    tcp_take_window(&s->tcp, segment);
    tcp_wait_for_end(s, HALF_OPEN);
    tcp_output(s);
}

static void established(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    socket->state = t->fin_wanted ? NET_FIN_WAIT_1 : NET_ESTABLISHED;
    t->end_at = 0;
    t->tries = 0;
    tcp_keepalive_from_now(socket);
}

/* Section 3.10.7.3. */
static void in_syn_sent(struct socket *socket, const struct segment *segment)
{
    struct tcp *t = &socket->tcp;
    int acks = segment->flags & TCP_ACK && segment->ack == t->iss + 1;
    if (segment->flags & TCP_ACK && !acks) {
        if (!(segment->flags & TCP_RST)) {
            /* It answers something else, of a connection before this one. */
            uint32_t max = t->max;
            t->max = segment->ack;
            socket->state = NET_SYN_RECEIVED;
            tcp_send_reset(socket);
            socket->state = NET_SYN_SENT;
            t->max = max;
        }
        return;
    }
    if (segment->flags & TCP_RST) {
        if (acks)
            tcp_end(socket, -ECONNREFUSED);
        return;
    }
    if (!(segment->flags & TCP_SYN))
        return;
    t->irs = segment->seq;
    t->rcv_nxt = t->advertised = segment->seq + 1;
    take_mss(t, segment);
    tcp_take_window(t, segment);
    if (!acks) {
        /* Both sides have begun at once. */
        socket->state = NET_SYN_RECEIVED;
        t->nxt = t->iss;
        tcp_output(socket);
        return;
    }
    t->una = t->nxt = t->max;
    t->syn_acked = 1;
    t->resend_at = 0;
    if (t->timing && t->tries == 0)
        tcp_measure(t, (uint32_t)(now - t->timed_since));
    t->timing = 0;
    established(socket);
    t->ack_now = 1;
    tcp_mark(socket);
    socket_changed(socket);
}

/* ---- Data ---- */

/* Remembers what came out of order; if there are too many pieces, it will come again. Returns whether it
   does. */
static int note_range(struct tcp *t, uint32_t first, uint32_t end)
{
    uint32_t i = 0, k;
    while (i < t->range_count && before(t->ranges[i].end, first))
        i++;
    for (k = i; k < t->range_count && !before(end, t->ranges[k].first); k++) {
        first = before(t->ranges[k].first, first) ? t->ranges[k].first : first;
        end = before(end, t->ranges[k].end) ? t->ranges[k].end : end;
    }
    if (k == i && t->range_count == RANGES)
        return 0;
    memmove(&t->ranges[i + 1], &t->ranges[k], (t->range_count - k) * sizeof *t->ranges);
    t->range_count += 1 + i - k;
    t->ranges[i] = (struct range){first, end};
    return 1;
}

/* What follows on what was received is received now. */
static void join_ranges(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    while (t->range_count && !before(t->rcv_nxt, t->ranges[0].first)) {
        if (before(t->rcv_nxt, t->ranges[0].end)) {
            socket->in.used += t->ranges[0].end - t->rcv_nxt;
            t->rcv_nxt = t->ranges[0].end;
        }
        memmove(t->ranges, t->ranges + 1, --t->range_count * sizeof *t->ranges);
    }
}

/* The segment is cut to the window already. */
static void take_data(struct socket *socket, const struct segment *segment)
{
    struct tcp *t = &socket->tcp;
    uint32_t ahead = segment->seq - t->rcv_nxt;
    if (ahead || t->range_count)
        t->ack_now = 1;             /* RFC 5681, section 4.2 */
    if (ahead && !note_range(t, segment->seq, segment->seq + segment->bytes))
        return;
    ring_put(&socket->in, socket->in.used + ahead, segment->data, segment->bytes);
    t->unacknowledged += segment->bytes;
    if (ahead) {
        tcp_output(socket);         /* each counts: three of them make the peer send again */
        return;
    }
    socket->in.used += segment->bytes;
    t->rcv_nxt += segment->bytes;
    join_ranges(socket);
    socket_changed(socket);
}

static void take_fin(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    int all_acknowledged = t->fin_sent && t->una == t->max;
    t->fin_received = 1;
    t->rcv_nxt++;
    t->advertised = t->rcv_nxt;
    t->ack_now = 1;
    t->range_count = 0;
    tcp_mark(socket);
    if (socket->state == NET_ESTABLISHED)
        socket->state = NET_CLOSE_WAIT;
    else if (socket->state == NET_FIN_WAIT_1 && !all_acknowledged)
        socket->state = NET_CLOSING;
    else if (socket->state == NET_FIN_WAIT_1 || socket->state == NET_FIN_WAIT_2)
        tcp_enter_time_wait(socket);
    socket_changed(socket);
}

/* Our FIN has been acknowledged. */
static void fin_acknowledged(struct socket *socket)
{
    if (socket->state == NET_FIN_WAIT_1) {
        socket->state = NET_FIN_WAIT_2;
        if (!socket->attached)
            tcp_wait_for_end(socket, ORPHAN);
    } else if (socket->state == NET_CLOSING) {
        tcp_enter_time_wait(socket);
    } else if (socket->state == NET_LAST_ACK) {
        tcp_end(socket, 0);
    }
}

/* ---- All segments ---- */

/* Cuts the segment to the window. Returns whether something of it lies there (section 3.10.7.4, first). */
static int cut(struct socket *socket, struct segment *segment)
{
    struct tcp *t = &socket->tcp;
    uint32_t window = before(t->rcv_nxt, t->advertised) ? t->advertised - t->rcv_nxt : 0;
    uint32_t length = segment->bytes + (segment->flags & (TCP_SYN | TCP_FIN) ? 1 : 0);
    if (length == 0)
        return segment->seq == t->rcv_nxt || segment->seq - t->rcv_nxt < window;
    if (before(segment->seq, t->rcv_nxt)) {
        uint32_t old = t->rcv_nxt - segment->seq;
        if (old >= length)
            return 0;
        if (segment->flags & TCP_SYN)
            return 1;
        old = least(old, segment->bytes);
        segment->seq += old;
        segment->data += old;
        segment->bytes -= old;
    }
    uint32_t ahead = segment->seq - t->rcv_nxt;
    if (ahead && ahead >= window)
        return 0;
    if (segment->bytes > window - ahead) {
        /* What else it says counts, even if there is no room at all. */
        segment->bytes = window - ahead;
        segment->flags &= ~TCP_FIN;
        t->ack_now = 1;
        tcp_mark(socket);
    }
    return 1;
}

/* RFC 5961: those who cannot know the exact number get an answer that only the peer understands. Two sides
   that answer each other's empty segments must not go on for ever (section 7). */
static void challenge(struct socket *socket, const struct segment *segment)
{
    if (segment->bytes == 0 && !(segment->flags & TCP_FIN)) {
        if (socket->tcp.challenged && now - socket->tcp.challenged < CHALLENGE_PAUSE)
            return;
        socket->tcp.challenged = now;
    }
    socket->tcp.ack_now = 1;
    tcp_mark(socket);
}

static int is_acceptable(struct socket *socket, struct segment *segment)
{
    uint32_t seq = segment->seq;
    if (!cut(socket, segment)) {
        if (!(segment->flags & TCP_RST))
            challenge(socket, segment);
        return 0;
    }
    if (segment->flags & TCP_RST) {
        if (seq != socket->tcp.rcv_nxt)
            challenge(socket, segment);
        else
            tcp_end(socket, socket->state == NET_SYN_RECEIVED ? -ECONNREFUSED : -ECONNRESET);
        return 0;
    }
    if (segment->flags & TCP_SYN) {
        challenge(socket, segment);
        return 0;
    }
    return segment->flags & TCP_ACK;
}

static void to_connection(struct socket *socket, const struct packet *packet, struct segment *segment)
{
    struct tcp *t = &socket->tcp;
    if (socket->state == NET_SYN_SENT) {
        in_syn_sent(socket, segment);
        return;
    }
    if (!is_acceptable(socket, segment))
        return;
    if (!t->syn_acked) {
        if (segment->ack != t->iss + 1 || socket_memory(socket)) {
            tcp_reset(packet);
            return;
        }
        established(socket);
        if (t->listener)
            socket_changed(&sockets[t->listener - 1]);
    }
    tcp_keepalive_from_now(socket);
    if (socket->state == NET_TIME_WAIT) {
        if (segment->bytes || segment->flags & TCP_FIN)
            challenge(socket, segment);
        return;
    }
    if (!tcp_take_ack(socket, segment))
        return;
    if (t->fin_sent && t->una == t->max) {
        fin_acknowledged(socket);
        if (!socket->used || socket->state == NET_CLOSED)
            return;
    }
    if (segment->bytes && !t->fin_received) {
        if (!socket->attached && !t->listener) {
            /* Nobody is there who could read it (section 3.10.4). */
            tcp_send_reset(socket);
            socket_free(socket);
            return;
        }
        take_data(socket, segment);
        tcp_mark(socket);
    }
    if (segment->flags & TCP_FIN && !t->fin_received && segment->seq + segment->bytes == t->rcv_nxt)
        take_fin(socket);
}

void tcp_received(const struct packet *packet)
{
    const uint8_t *header = packet->data;
    if (packet->bytes < TCP_HEADER)
        return;
    uint32_t header_bytes = (header[12] >> 4) * 4u;
    if (header_bytes < TCP_HEADER || header_bytes > packet->bytes || packet->is_broadcast ||
        checksum_between(packet->from, packet->to, PROTOCOL_TCP, header, packet->bytes))
        return;
    struct segment segment = {
        .seq = get32(header + 4), .ack = get32(header + 8),
        .flags = header[13] & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK), .window = get16(header + 14),
        .mss = option_mss(header + TCP_HEADER, header_bytes - TCP_HEADER), .data = header + header_bytes,
        .bytes = packet->bytes - header_bytes};
    struct socket *socket = find(packet, get16(header), get16(header + 2));
    /* A new connection between the same ends, which begins behind the old one (section 3.6.1). */
    if (socket && socket->state == NET_TIME_WAIT && !socket->attached && segment.flags == TCP_SYN &&
        before(socket->tcp.rcv_nxt, segment.seq)) {
        socket_free(socket);
        socket = find(packet, get16(header), get16(header + 2));
    }
    if (!socket)
        tcp_reset(packet);
    else if (socket->state == NET_LISTENING)
        to_listener(socket, packet, &segment);
    else
        to_connection(socket, packet, &segment);
}
