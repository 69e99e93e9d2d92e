/* Single things: checksums, fragments, datagrams, refusals, DHCP, and connections that are reset. */

#include "host.h"

static struct socket *open_socket(uint32_t kind)
{
    struct socket *s = socket_new(kind);
    CHECK(s);
    s->attached = 1;
    return s;
}

/* RFC 1071, section 3. */
static void checksums(void)
{
    static const uint8_t example[] = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
    uint8_t bytes[100];
    CHECK(checksum_end(checksum_add(0, example, 8)) == (uint16_t)~0xddf2);
    for (uint32_t round = 0; round < 1000; round++) {
        uint32_t length = random_below(sizeof bytes), sum = 0;
        for (uint32_t i = 0; i < length; i++) {
            bytes[i] = random_below(4) ? random_below(256) : 255;
            sum += i % 2 ? bytes[i] : bytes[i] << 8;
        }
        while (sum >> 16)
            sum = (sum & 0xffff) + (sum >> 16);
        CHECK(checksum_end(checksum_add(0, bytes, length)) == (uint16_t)~sum);
    }
}

/* Datagrams of all lengths come back as they were, whole or in fragments. */
static void datagrams(void)
{
    static uint8_t sent[NET_MESSAGE_MAX], got[NET_MESSAGE_MAX];
    struct socket *s = open_socket(MINOR_UDP), *echo = open_socket(MINOR_UDP);
    struct net_message m;
    wire.delay = 100;
    wire.disorder = 300;
    CHECK(socket_bind(echo, 0, 7) == 0);
    CHECK(socket_bind(s, 0, 7) == -EADDRINUSE);
    CHECK(socket_connect(s, THERE, 7) == 0);
    for (uint32_t i = 0; i < 300; i++) {
        /* One packet alone can wait for the neighbour's address, so the first is no fragment. */
        uint32_t bytes = i && i < 10 ? NET_MESSAGE_MAX + 1 - i : random_below(i ? NET_MESSAGE_MAX + 1 : 1000);
        struct net_address none = {0, 0, 0};
        for (uint32_t k = 0; k < bytes; k++)
            sent[k] = random_below(256);
        CHECK(udp_send(s, &none, sent, bytes) == (int)bytes);
        while (world_step(100000))
            ;
        CHECK(datagram_get(echo, &m, got, sizeof got, 1) == (int)bytes && !memcmp(got, sent, bytes));
        CHECK(datagram_get(echo, &m, got, 10, 0) == (int)least(bytes, 10) && m.bytes == bytes);
        CHECK(datagram_get(echo, &m, got, 10, 0) == -EAGAIN);
        CHECK(udp_send(echo, &m.address, sent, bytes) == (int)bytes);
        while (world_step(100000))
            ;
        CHECK(datagram_get(s, &m, got, sizeof got, 0) == (int)bytes && !memcmp(got, sent, bytes));
    }
    CHECK(udp_send(s, &m.address, sent, NET_MESSAGE_MAX + 1) == -EMSGSIZE);
    socket_close(echo);
    CHECK(udp_send(s, &m.address, sent, 3) == 3);
    while (world_step(100000))
        ;
    CHECK(socket_take_error(s) == -ECONNREFUSED);
    socket_close(s);
    CHECK(rings_used == 0);
}

/* Fragments that overlap, or would end behind the bound, are never joined. */
static void bad_fragments(void)
{
    uint8_t data[1400] = {0};
    struct socket *s = open_socket(MINOR_UDP);
    CHECK(socket_bind(s, 0, 9) == 0);
    put16(data, 9), put16(data + 2, 9), put16(data + 4, 1600);
    give_ip(PROTOCOL_UDP, THERE, HERE, data, 800, 1, 0x2000);
    give_ip(PROTOCOL_UDP, THERE, HERE, data, 808, 1, 0x2000 | 99);
    give_ip(PROTOCOL_UDP, THERE, HERE, data, 800, 1, 100);
    CHECK(s->in.used == 0);
    give_ip(PROTOCOL_UDP, THERE, HERE, data, 1400, 2, 0x2000 | 8191);
    give_ip(PROTOCOL_UDP, THERE, HERE, data, 1400, 2, 1024);
    give_ip(PROTOCOL_UDP, THERE, HERE, data, 800, 3, 0x2000);
    give_ip(PROTOCOL_UDP, THERE, HERE, data, 800, 3, 0x2000);
    CHECK(s->in.used == 0);
    give_ip(PROTOCOL_UDP, THERE, HERE, data, 800, 3, 100);
    CHECK(s->in.used > 1592);
    socket_close(s);
}

static void echoes(void)
{
    uint8_t message[1000] = {8}, got[1000];
    struct net_message m;
    struct socket *s = open_socket(MINOR_ICMP);
    memset(message + 8, 0x55, sizeof message - 8);
    CHECK(socket_connect(s, THERE, 0) == 0 && socket_memory(s) == 0);
    CHECK(icmp_send(s, THERE, message, sizeof message) == sizeof message);
    /* The request comes back and is answered, as is one of a stranger, */
    world_pass(1);
    CHECK(datagram_get(s, &m, got, sizeof got, 0) == sizeof got
          && !memcmp(got + 8, message + 8, sizeof got - 8));
    wire.keeps = 1;
    message[6] = 1;
    sum_icmp(message, sizeof message);
    give_ip(PROTOCOL_ICMP, THERE, HERE, message, sizeof message, 1, 0);
    CHECK(wire.frame[ETHERNET_HEADER + 9] == PROTOCOL_ICMP && wire.frame[ETHERNET_HEADER + IP_HEADER] == 0);
    CHECK(!memcmp(wire.frame + ETHERNET_HEADER + IP_HEADER + 4, message + 4, sizeof message - 4));
    /* and the answer with its identifier is the socket's. */
    message[0] = 0;
    put16(message + 4, s->local_port);
    sum_icmp(message, sizeof message);
    CHECK(s->in.used == 0);
    give_ip(PROTOCOL_ICMP, THERE, HERE, message, sizeof message, 1, 0);
    CHECK(datagram_get(s, &m, got, sizeof got, 0) == sizeof got && !memcmp(got, message, sizeof got));
    put16(message + 4, s->local_port + 1);
    sum_icmp(message, sizeof message);
    give_ip(PROTOCOL_ICMP, THERE, HERE, message, sizeof message, 1, 0);
    CHECK(s->in.used == 0);
    socket_close(s);
}

/* Nobody listens; nobody is there; there is no way. */
static void refusals(void)
{
    struct socket *s = open_socket(MINOR_TCP);
    wire.delay = 100;
    CHECK(tcp_connect(s, THERE, 81) == 0);
    while (s->state == NET_SYN_SENT)
        world_step(100000);
    CHECK(socket_take_error(s) == -ECONNREFUSED);
    CHECK(tcp_can_write(s) == -EPIPE);
    wire.keeps = 1;
    CHECK(tcp_connect(s, THERE, 81) == 0);
    CHECK(tcp_connect(s, THERE, 81) == -EALREADY);
    world_pass(600);
    CHECK(socket_take_error(s) == -ETIMEDOUT);
    CHECK(tcp_connect(s, 0x0b000001, 81) == -ENETUNREACH);
    socket_close(s);
    CHECK(sockets_used() == 0 && rings_used == 0);
}

/* A pair of connected sockets. */
static void connect_pair(struct socket *pair[2])
{
    struct net_accepted accepted;
    struct socket *listener = open_socket(MINOR_TCP);
    pair[0] = open_socket(MINOR_TCP);
    CHECK(socket_bind(listener, 0, 80) == 0 && tcp_listen(listener, 1) == 0);
    CHECK(tcp_connect(pair[0], THERE, 80) == 0);
    while (tcp_accept(listener, &accepted) == -EAGAIN)
        world_step(100000);
    pair[1] = open_socket(MINOR_TCP);
    CHECK(tcp_take(pair[1], accepted.token) == 0);
    socket_close(listener);
    while (pair[0]->state != NET_ESTABLISHED)
        world_step(100000);
}

/* A segment of the peer's, which is the other end of `s`. */
static void give_segment(const struct socket *s, uint32_t seq, uint32_t ack, uint32_t flags)
{
    uint8_t segment[TCP_HEADER] = {0};
    put16(segment, s->peer_port);
    put16(segment + 2, s->local_port);
    put32(segment + 4, seq);
    put32(segment + 8, ack);
    put16(segment + 12, TCP_HEADER << 10 | flags);
    put16(segment + 14, 1000);
    sum_tcp(segment, sizeof segment, THERE, HERE);
    give_ip(PROTOCOL_TCP, THERE, HERE, segment, sizeof segment, 1, 0);
}

/* Only the exact number resets a connection (RFC 5961). */
static void resets(void)
{
    struct socket *pair[2];
    connect_pair(pair);
    wire.keeps = 1;
    give_segment(pair[0], pair[0]->tcp.rcv_nxt + 1, 0, TCP_RST);
    give_segment(pair[0], pair[0]->tcp.rcv_nxt - 1, 0, TCP_RST);
    give_segment(pair[0], pair[0]->tcp.rcv_nxt, 0, TCP_SYN);
    give_segment(pair[0], pair[0]->tcp.rcv_nxt + 70000, pair[0]->tcp.nxt, TCP_ACK);
    CHECK(pair[0]->state == NET_ESTABLISHED);
    give_segment(pair[0], pair[0]->tcp.rcv_nxt, 0, TCP_RST);
    CHECK(pair[0]->state == NET_CLOSED && socket_take_error(pair[0]) == -ECONNRESET);
    wire.keeps = 0;
    /* The other end closes with data that it has not read: that is a reset, too. */
    socket_close(pair[0]);
    pair[1]->in.used = 1;
    socket_close(pair[1]);
    CHECK(wire.frame[ETHERNET_HEADER + IP_HEADER + 13] & TCP_RST);
    world_pass(1);
    CHECK(sockets_used() == 0 && rings_used == 0);
}

/* A thousand connections that are never completed leave room for a real one. */
static void floods(void)
{
    struct socket *listener = open_socket(MINOR_TCP), *s = open_socket(MINOR_TCP);
    struct socket stranger = {.local_port = 80};
    CHECK(socket_bind(listener, 0, 80) == 0 && tcp_listen(listener, 8) == 0);
    wire.keeps = 1;
    for (uint32_t i = 0; i < 1000; i++) {
        stranger.peer_port = 1000 + i;
        give_segment(&stranger, i, 0, TCP_SYN);
    }
    CHECK(sockets_used() == 10 && rings_used == 0);
    wire.keeps = 0;
    CHECK(tcp_connect(s, THERE, 80) == 0);
    world_pass(100);
    CHECK(tcp_accepted(listener) && sockets_used() == 3);
    socket_close(listener);
    socket_close(s);
    world_pass(400);
    CHECK(sockets_used() == 0 && rings_used == 0);
}

/* A driver that is gone for ten seconds ends no connection, and keeps none from being made; one that does not come
   back does. */
static void drivers(void)
{
    static uint8_t bytes[20000];
    struct socket *pair[2];
    uint32_t neighbour;
    connect_pair(pair);
    ring_put(&pair[0]->out, 0, bytes, sizeof bytes);
    pair[0]->out.used = sizeof bytes;
    tcp_output(pair[0]);
    interface_down(card);
    world_pass(10);
    CHECK(route(card->address ^ 1, &neighbour) == card);
    CHECK(pair[1]->in.used < sizeof bytes && pair[0]->state == NET_ESTABLISHED);
    interface_up(card);
    world_pass(1);
    CHECK(pair[1]->in.used == sizeof bytes);
    socket_close(pair[0]);
    socket_close(pair[1]);
    world_pass(400);
    CHECK(sockets_used() == 0);
    interface_down(card);
    world_pass(40);
    CHECK(route(card->address ^ 1, &neighbour) == NULL);
    interface_up(card);
    world_pass(1);
}

static uint32_t answer_dhcp(uint32_t type, uint32_t lease, uint8_t *to)
{
    const uint8_t *asked = wire.frame + ETHERNET_HEADER + IP_HEADER + UDP_HEADER;
    uint8_t *at = to + 240;
    CHECK(get16(wire.frame + ETHERNET_HEADER + IP_HEADER + 2) == DHCP_SERVER);
    memset(to, 0, 300);
    memcpy(to, asked, 44);
    to[0] = 2;
    put32(to + 16, 0x0a000005);
    put32(to + 236, 0x63825363);
    *at++ = 53, *at++ = 1, *at++ = type;
    *at++ = 54, *at++ = 4, put32(at, THERE), at += 4;
    *at++ = 1, *at++ = 4, put32(at, 0xffffff00), at += 4;
    *at++ = 3, *at++ = 4, put32(at, THERE), at += 4;
    *at++ = 6, *at++ = 8, put32(at, THERE), put32(at + 4, THERE + 1), at += 8;
    *at++ = 51, *at++ = 4, put32(at, lease), at += 4;
    *at = 255;
    return 300;
}

static void give_dhcp(uint32_t type, uint32_t lease)
{
    uint8_t datagram[UDP_HEADER + 300] = {0};
    uint32_t bytes = UDP_HEADER + answer_dhcp(type, lease, datagram + UDP_HEADER);
    put16(datagram, DHCP_SERVER), put16(datagram + 2, DHCP_CLIENT), put16(datagram + 4, bytes);
    give_ip(PROTOCOL_UDP, THERE, 0xffffffff, datagram, bytes, 1, 0);
}

static void dhcp(void)
{
    wire.keeps = 1;
    dhcp_start(card);
    CHECK(wire.bytes > 300 && card->address == 0);
    give_dhcp(5, 1000);             /* nobody has asked for that yet */
    CHECK(card->address == 0);
    give_dhcp(2, 1000);
    CHECK(card->dhcp == DHCP_REQUESTING);
    give_dhcp(5, 1000);
    CHECK(card->address == 0x0a000005 && card->gateway == THERE && card->nameservers[1] == THERE + 1);
    uint32_t sent = wire.sent;
    world_pass(490);
    CHECK(wire.sent == sent);
    world_pass(20);
    CHECK(card->dhcp == DHCP_RENEWING && wire.sent > sent);
    world_pass(600);
    CHECK(card->address == 0 && card->dhcp == DHCP_SELECTING);
    sent = wire.sent;
    world_pass(3600);
    CHECK(wire.sent - sent < 80);
    dhcp_stop(card);
}

void test_parts(void)
{
    static void (*const tests[])(void) = {checksums, datagrams, bad_fragments, echoes, refusals, resets,
                                          floods, drivers, dhcp};
    for (uint32_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        world_start(i + 1);
        tests[i]();
        check_sockets();
    }
    printf("parts: all right\n");
}
