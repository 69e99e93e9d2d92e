/* Sockets: what they have in common, and the connections of TCP. */

#ifndef NET_SOCKET_H
#define NET_SOCKET_H

#include "net.h"

#define SOCKETS (256 - NET_FIRST_SOCKET)
#define FIRST_PORT 49152u           /* of those that are chosen (RFC 6335, section 6) */

/* Bytes in their order. */
struct ring {
    uint8_t *data;                  /* NULL: there is no memory for it yet */
    uint32_t first, used;
};

/* `at` counts from first */
void ring_put(struct ring *ring, uint32_t at, const uint8_t *from, uint32_t bytes);
void ring_get(const struct ring *ring, uint32_t at, uint8_t *to, uint32_t bytes);
void ring_drop(struct ring *ring, uint32_t bytes);
void ring_free(struct ring *ring);  /* with its memory, if it has some */

#define RANGES 8                    /* of data that came out of order */

struct range {
    uint32_t first, end;
};

struct tcp {
    uint32_t iss, una, nxt, max;    /* sent: first, not acknowledged, next, and the end of all that ever
                                       was */
    /* the peer's; SND.WL1, SND.WL2; the largest so far */
    uint32_t window, window_seq, window_ack, window_max;
    uint32_t irs, rcv_nxt, advertised; /* received: first, next, and the right edge of the window */
    uint32_t mss;
    uint32_t cwnd, ssthresh, recover, duplicates;
    uint8_t syn_acked, recovering, fin_wanted, fin_sent, fin_received, ack_now, wants_output, timing, probing;
    uint32_t unacknowledged;        /* bytes received since the last acknowledgement was sent */
    struct range ranges[RANGES];    /* sequence numbers, in order, apart from each other */
    uint32_t range_count;

    uint32_t srtt, rttvar, rto;     /* microseconds (RFC 6298) */
    uint32_t timed;                 /* the sequence number whose acknowledgement is timed */
    uint64_t timed_since;
    uint32_t tries;
    uint64_t resend_at, ack_at, end_at, probe_at; /* timers; 0: off */
    uint64_t challenged;            /* when an empty segment that makes no sense was last answered */

    uint32_t backlog;               /* of listeners */
    uint16_t listener;              /* index + 1 of the one that waits for NET_ACCEPT; 0: none */
    uint8_t handed;                 /* NET_ACCEPT has given its token */
    uint32_t token[2];
    uint32_t order;                 /* in which connections came */
};

struct socket {
    uint8_t used, attached;         /* attached: a program has it open */
    uint8_t kind;                   /* MINOR_ */
    uint8_t nodelay, reuse, keepalive, no_more; /* no_more: the program reads no more */
    uint8_t state;                  /* enum net_state */
    uint8_t bound;
    uint32_t local, peer;
    uint16_t local_port, peer_port; /* of ICMP: identifier, nothing */
    int error;                      /* negative */
    struct ring in, out;
    uint32_t resent;
    struct tcp tcp;
};

extern struct socket sockets[SOCKETS];

/* sockets.c */
struct socket *socket_new(uint32_t kind);
void socket_free(struct socket *socket);
struct socket *socket_of_minor(uint32_t minor);
uint32_t minor_of(const struct socket *socket);
void socket_close(struct socket *socket);                  /* the program has it no more */
int socket_bind(struct socket *socket, uint32_t address, uint32_t port);
/* Gives it a port, if it has none. The peer is 0, or that of a connection. */
int socket_bind_any(struct socket *socket, uint32_t peer, uint32_t peer_port);
int socket_connect(struct socket *socket, uint32_t address, uint32_t port);
int socket_memory(struct socket *socket);                  /* for what it receives, and sends */
void socket_fail(struct socket *socket, int error);
int socket_take_error(struct socket *socket);
void socket_describe(const struct socket *socket, struct net_socket *to);
void sockets_list(struct net_sockets *list);
uint32_t socket_can(struct socket *socket);                /* 1 read, 2 write */

/* Datagrams that wait to be read, each behind a header. */
void datagram_put(struct socket *socket, uint32_t from, uint32_t port, const uint8_t *data, uint32_t bytes);
int datagram_get(struct socket *socket, struct net_message *message, uint8_t *to, uint32_t room, int peek);

/* tcp.c: what programs do. */
int tcp_connect(struct socket *socket, uint32_t address, uint32_t port);
int tcp_listen(struct socket *socket, uint32_t backlog);
int tcp_accept(struct socket *socket, struct net_accepted *accepted);
int tcp_take(struct socket *socket, const uint32_t token[2]);
struct socket *tcp_accepted(const struct socket *listener); /* the oldest connection that can be accepted */
int tcp_shutdown(struct socket *socket);
void tcp_close(struct socket *socket);
uint32_t tcp_room(const struct socket *socket);            /* bytes that can be written now */
int tcp_can_write(const struct socket *socket);            /* or an error, negated */
int tcp_at_end(const struct socket *socket);               /* nothing comes any more */
void tcp_read(struct socket *socket);                      /* the program has taken bytes */
void tcp_unreachable(uint32_t from, uint32_t to, uint32_t from_port, uint32_t to_port, uint32_t seq,
                     int error);

/* tcp_in.c */
void tcp_received(const struct packet *packet);
void tcp_end(struct socket *socket, int error);            /* there is no connection any more */
void tcp_enter_time_wait(struct socket *socket);

/* tcp_ack.c */
struct segment {
    uint32_t seq, ack, flags, window;
    uint32_t mss;                   /* 0: it does not say */
    const uint8_t *data;
    uint32_t bytes;
};

void tcp_take_window(struct tcp *tcp, const struct segment *segment);
/* whether it is to be looked at further */
int tcp_take_ack(struct socket *socket, const struct segment *segment);
void tcp_slow_down(struct tcp *tcp, uint32_t flight);      /* bytes in flight when something was lost */

/* tcp_out.c */
#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_PSH 8
#define TCP_ACK 16
#define TCP_HEADER 20u
#define MSS_MAX (MTU - IP_HEADER - TCP_HEADER)

void tcp_output(struct socket *socket);
void tcp_reset(const struct packet *packet);               /* answers a segment that belongs to nothing */
void tcp_send_reset(struct socket *socket);
void tcp_start(struct tcp *tcp, const struct socket *socket); /* first sequence number and so on */
void tcp_timer(void);
void tcp_set_resend(struct tcp *tcp);
void tcp_measure(struct tcp *tcp, uint32_t microseconds);  /* a round trip */
void tcp_keepalive_from_now(struct socket *socket);
void tcp_wait_for_end(struct socket *socket, uint32_t microseconds);
void tcp_hurry(void);                                      /* there is a way to the network again */
void tcp_continue(void);                                   /* those that waited for the card */

/* Those that have something to acknowledge or send when all frames that have come are handled. */
void tcp_mark(struct socket *socket);
void tcp_flush(void);

/* Sequence numbers, which wrap (RFC 9293, section 3.4). */
static inline int before(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) < 0;
}

static inline uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

#endif
