/* Packets of all kinds that no sane peer sends, among programs that open, use and close sockets: nothing
   crashes, nothing grows without bound, and in the end all is free. */

#include "host.h"

#define PROGRAMS 24

static struct socket *open_sockets[PROGRAMS];

static struct socket *any_socket(void)
{
    struct socket *s = &sockets[random_below(8) ? random_below(32) : random_below(SOCKETS)];
    return s->used ? s : NULL;
}

/* Numbers near those that matter. */
static uint32_t near(uint32_t value)
{
    switch (random_below(6)) {
    case 0:
        return random_below(~0u);
    case 1:
        return value + random_below(200000);
    case 2:
        return value - random_below(200000);
    case 3:
        return value + random_below(4) - 2;
    default:
        return value;
    }
}

static void fill(uint8_t *data, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        data[i] = random_below(256);
}

/* A segment for a connection that there is, with options that may be cut. */
static void give_tcp(void)
{
    uint8_t data[MTU - IP_HEADER];
    const struct socket *s = any_socket();
    uint32_t header = TCP_HEADER + 4 * (random_below(3) ? 0 : random_below(11));
    uint32_t bytes = header + (random_below(2) ? 0 : random_below(sizeof data - header));
    fill(data, bytes);
    put16(data, s && random_below(8) ? s->peer_port : 1000 + random_below(30));
    put16(data + 2, s && random_below(8) ? s->local_port : 80);
    if (s) {
        put32(data + 4, near(s->tcp.rcv_nxt));
        put32(data + 8, near(random_below(2) ? s->tcp.una : s->tcp.max));
    }
    static const uint8_t flags[] = {TCP_ACK, TCP_ACK | TCP_FIN, TCP_SYN, TCP_SYN | TCP_ACK,
                                    TCP_ACK | TCP_PSH, 0};
    data[12] = (uint8_t)(random_below(20) ? header << 2 : random_below(256));
    data[13] = random_below(30) ? flags[random_below(sizeof flags)] : random_below(256);
    if (random_below(3) == 0)
        put16(data + 14, random_below(2) ? 0 : random_below(100));
    sum_tcp(data, bytes, THERE, HERE);
    give_ip(PROTOCOL_TCP, THERE, HERE, data, bytes, 1, 0);
}

static void give_udp(void)
{
    uint8_t data[400];
    const struct socket *s = any_socket();
    uint32_t bytes = UDP_HEADER + random_below(sizeof data - UDP_HEADER);
    fill(data, bytes);
    put16(data + 2, random_below(4) ? (s ? s->local_port : 7) : random_below(65536));
    put16(data + 4, random_below(8) ? bytes : random_below(65536));
    put16(data + 6, 0);
    give_ip(PROTOCOL_UDP, random_below(9) ? THERE : random_below(~0u), HERE, data, bytes, 1, 0);
}

static void give_dhcp(void)
{
    uint8_t data[600];
    uint32_t bytes = 240 + random_below(sizeof data - 240);
    fill(data, bytes);
    put16(data, DHCP_SERVER), put16(data + 2, DHCP_CLIENT), put16(data + 4, bytes), put16(data + 6, 0);
    data[8] = 2;
    put32(data + 8 + 4, card->dhcp_id);
    memcpy(data + 8 + 28, card->ethernet, 6);
    put32(data + 8 + 236, 0x63825363);
    data[8 + 240 < bytes ? 8 + 240 : 8] = 53;
    if (random_below(4) == 0)
        dhcp_start(card);
    give_ip(PROTOCOL_UDP, THERE, 0xffffffff, data, bytes, 1, 0);
    if (card->address != HERE && random_below(8) == 0) {
        dhcp_stop(card);
        interface_configure(card, HERE, 0xffffff00, random_below(2) ? THERE : 0);
    }
}

/* Echoes, and errors about packets that may have been sent. */
static void give_icmp(void)
{
    uint8_t data[300];
    uint32_t bytes = 8 + random_below(sizeof data - 8);
    const struct socket *s = any_socket();
    fill(data, bytes);
    data[0] = random_below(13);
    if (bytes >= 8 + 28 && random_below(2)) {
        data[0] = random_below(2) ? 3 : 11;
        data[1] = random_below(5);
        data[8] = 0x45;
        data[8 + 9] = random_below(2) ? PROTOCOL_TCP : random_below(2) ? PROTOCOL_UDP : PROTOCOL_ICMP;
        put32(data + 8 + 12, HERE);
        put32(data + 8 + 16, THERE);
        put16(data + 28, s ? s->local_port : 80);
        put16(data + 30, s ? s->peer_port : 80);
        put32(data + 32, s ? near(s->tcp.iss) : 0);
    }
    sum_icmp(data, bytes);
    give_ip(PROTOCOL_ICMP, THERE, HERE, data, bytes, 1, 0);
}

static void give_fragment(void)
{
    static const uint8_t protocols[] = {PROTOCOL_TCP, PROTOCOL_UDP, PROTOCOL_ICMP};
    uint8_t data[1480];
    uint32_t bytes = random_below(3) ? 8 * random_below(185) : random_below(sizeof data);
    fill(data, bytes);
    give_ip(protocols[random_below(3)], THERE, HERE, data, bytes, random_below(6),
            (random_below(2) ? 0x2000 : 0) | random_below(random_below(4) ? 300 : 8192));
}

/* No order at all, but for the type. */
static void give_noise(void)
{
    uint32_t bytes = random_below(random_below(2) ? 80 : FRAME_MAX);
    uint8_t *frame = malloc(bytes + 1);
    fill(frame, bytes);
    if (bytes >= ETHERNET_HEADER + 1) {
        memcpy(frame, card->ethernet, 6);
        put16(frame + 12, random_below(2) ? TYPE_IP : TYPE_ARP);
        frame[14] = random_below(2) ? 0x45 + random_below(11) : random_below(256);
    }
    uint8_t *exact = malloc(bytes ? bytes : 1);
    memcpy(exact, frame, bytes);
    frame_received(card, exact, bytes);
    free(exact);
    free(frame);
}

static void give_arp(void)
{
    uint8_t frame[42];
    fill(frame, sizeof frame);
    memcpy(frame, card->ethernet, 6);
    put16(frame + 12, TYPE_ARP);
    put16(frame + 14, 1), put16(frame + 16, TYPE_IP), frame[18] = 6, frame[19] = 4;
    put16(frame + 20, 1 + random_below(2));
    frame[22] &= 0xfe;
    if (random_below(2))
        put32(frame + 28, 0x0a000000 + random_below(256));
    if (random_below(2))
        put32(frame + 38, HERE);
    frame_received(card, frame, sizeof frame);
}

static void act(struct socket *s)
{
    uint8_t bytes[3000] = {0};
    struct net_message m;
    struct net_address to = {swap32(THERE), swap16(7), 0};
    switch (random_below(9)) {
    case 0:
        socket_bind(s, 0, random_below(2) ? 80 : random_below(100));
        break;
    case 1:
        if (s->kind == MINOR_TCP)
            tcp_listen(s, random_below(20));
        break;
    case 2:
        socket_connect(s, random_below(2) ? THERE : LOOPBACK, random_below(2) ? 80 : random_below(100));
        break;
    case 3:
        if (s->kind == MINOR_TCP && tcp_can_write(s) > 0) {
            uint32_t part = least(tcp_can_write(s), random_below(sizeof bytes));
            ring_put(&s->out, s->out.used, bytes, part);
            s->out.used += part;
            tcp_output(s);
        } else if (s->kind == MINOR_UDP) {
            udp_send(s, &to, bytes, random_below(sizeof bytes));
        } else if (s->kind == MINOR_ICMP) {
            bytes[0] = 8;
            icmp_send(s, THERE, bytes, random_below(sizeof bytes));
        }
        break;
    case 4:
    case 5:
        if (s->kind != MINOR_TCP) {
            datagram_get(s, &m, bytes, sizeof bytes, random_below(2));
        } else if (s->in.used) {
            ring_drop(&s->in, 1 + random_below(s->in.used));
            tcp_read(s);
        }
        break;
    case 6:
        if (s->kind == MINOR_TCP)
            tcp_shutdown(s);
        break;
    default:
        socket_can(s);
        socket_take_error(s);
    }
}

/* Programs of their kind: each has a socket, until it closes it. */
static void use(void)
{
    struct socket **place = &open_sockets[random_below(PROGRAMS)], *s = *place;
    struct net_accepted accepted;
    if (!s) {
        s = *place = socket_new(random_below(4) ? MINOR_TCP : random_below(3));
        if (s)
            s->attached = 1;
    } else if (random_below(30) == 0) {
        socket_close(s);
        *place = NULL;
    } else if (s->kind == MINOR_TCP && s->state == NET_LISTENING && tcp_accept(s, &accepted) == 0) {
        for (place = open_sockets; place < open_sockets + PROGRAMS && *place; place++)
            ;
        if (place == open_sockets + PROGRAMS || !(*place = socket_new(MINOR_TCP)))
            return;
        (*place)->attached = 1;
        tcp_take(*place, accepted.token);
    } else {
        act(s);
    }
}

void test_hostile(uint32_t seed, uint32_t count)
{
    static void (*const kinds[])(void) = {give_tcp, give_tcp, give_tcp, give_tcp, give_udp, give_icmp,
                                          give_fragment, give_noise, give_arp, give_dhcp};
    uint32_t established = 0, most = 0;
    world_start(seed);
    wire.delay = 1000;
    wire.busy = 10;
    for (uint32_t i = 0; i < count; i++) {
        kinds[random_below(sizeof kinds / sizeof *kinds)]();
        if (random_below(4) == 0)
            use();
        for (uint32_t steps = random_below(4); steps; steps--)
            world_step(random_below(100) ? 1000 : 2000000);
        if (i % 16 == 0)
            check_sockets();
        for (uint32_t k = 0; k < PROGRAMS; k++)
            established += i % 64 == 0 && open_sockets[k] && open_sockets[k]->state == NET_ESTABLISHED;
        most = rings_used > most ? rings_used : most;
    }
    /* It must have come to something, or these were the wrong packets. */
    if (established < count / 640)
        fail("only %u times was there a connection", established);
    for (uint32_t k = 0; k < PROGRAMS; k++)
        if (open_sockets[k])
            socket_close(open_sockets[k]);
    dhcp_stop(card);
    interface_configure(card, HERE, 0xffffff00, 0);
    world_pass(1000);
    if (sockets_used() || rings_used)
        fail("%u sockets and %u rings are left", sockets_used(), rings_used);
    printf("hostile: %u packets, %u times a connection, at most %u rings: all right\n", count, established,
           most);
}
