/* TCP: acknowledgements, and what they say about the network (RFC 5681, RFC 6582). */

#include "socket.h"

void tcp_take_window(struct tcp *t, const struct segment *segment)
{
    t->window = segment->window;
    t->window_seq = segment->seq;
    t->window_ack = segment->ack;
    if (t->window > t->window_max)
        t->window_max = t->window;
}

void tcp_slow_down(struct tcp *t, uint32_t flight)
{
    t->ssthresh = flight / 2 > 2 * t->mss ? flight / 2 : 2 * t->mss;
}

/* Sends the first segment again that is not acknowledged, and nothing else. */
static void resend_first(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    uint32_t nxt = t->nxt, cwnd = t->cwnd;
    t->nxt = t->una;
    t->cwnd = t->mss;
    t->timing = 0;
    tcp_output(socket);
    t->cwnd = cwnd;
    if (before(t->nxt, nxt))
        t->nxt = nxt;
}

static void duplicate(struct socket *socket)
{
    struct tcp *t = &socket->tcp;
    t->duplicates++;
    if (t->recovering) {
        t->cwnd += t->mss;
        tcp_mark(socket);
    } else if (t->duplicates == 3 && !before(t->una, t->recover)) {
        tcp_slow_down(t, t->max - t->una);
        t->recover = t->max;
        t->recovering = 1;
        resend_first(socket);
        t->cwnd = t->ssthresh + 3 * t->mss;
        tcp_mark(socket);
    }
}

static void grow(struct tcp *t, uint32_t acked)
{
    if (t->cwnd < t->ssthresh)
        t->cwnd += least(acked, 2 * t->mss);
    else
        t->cwnd += t->mss * t->mss / t->cwnd ? t->mss * t->mss / t->cwnd : 1;
    t->cwnd = least(t->cwnd, 2 * RING_BYTES);
}

static void acknowledged(struct socket *socket, uint32_t ack)
{
    struct tcp *t = &socket->tcp;
    uint32_t data = ack - t->una;
    if (!t->syn_acked)
        data--;
    t->syn_acked = 1;
    data = least(data, socket->out.used);
    if (t->timing && before(t->timed, ack)) {
        tcp_measure(t, (uint32_t)(now - t->timed_since));
        t->timing = 0;
    }
    ring_drop(&socket->out, data);
    t->una = ack;
    if (before(t->nxt, ack))
        t->nxt = ack;
    t->tries = 0;
    t->probing = 0;
    t->duplicates = 0;
    t->resend_at = 0;
    if (t->recovering && !before(ack, t->recover)) {
        t->recovering = 0;
        t->cwnd = least(t->ssthresh, t->max - t->una + t->mss);
    } else if (t->recovering) {
        /* Another segment is missing (RFC 6582, section 3.2, step 3). */
        t->cwnd = t->cwnd > data ? t->cwnd - data : t->mss;
        if (data >= t->mss)
            t->cwnd += t->mss;
        resend_first(socket);
    } else {
        grow(t, data);
    }
    if (t->max != t->una && !t->resend_at)
        tcp_set_resend(t);
    if (data)
        socket_changed(socket);
}

int tcp_take_ack(struct socket *socket, const struct segment *segment)
{
    struct tcp *t = &socket->tcp;
    if (before(t->max, segment->ack)) {
        t->ack_now = 1;
        tcp_mark(socket);
        return 0;
    }
    int is_update = before(t->window_seq, segment->seq) ||
                    (t->window_seq == segment->seq && !before(segment->ack, t->window_ack));
    uint32_t window = t->window;
    if (!before(segment->ack, t->una) && is_update)
        tcp_take_window(t, segment);
    if (before(t->una, segment->ack)) {
        acknowledged(socket, segment->ack);
        tcp_mark(socket);
    } else if (segment->ack == t->una) {
        if (t->window != window) {
            /* Probes have been answered: there is a way. */
            if (t->probing) {
                t->tries = 0;
                t->probing = 0;
                t->resend_at = 0;
            }
            tcp_mark(socket);
        } else if (segment->bytes == 0 && t->max != t->una && !t->probing && !(segment->flags & TCP_FIN)) {
            duplicate(socket);
        }
        if (t->probing)
            t->tries = 0;
    }
    return 1;
}
