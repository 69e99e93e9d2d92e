/* TCP over networks that lose, double, delay and exchange packets, with cards that are busy and programs that
   are slow: what arrives is what was sent, connections end, and nothing is left over. */

#include "host.h"

#define PORT 80
#define SECONDS_MAX 3600u
#define STEPS_MAX 20000000u

struct end {
    struct socket *socket;
    uint32_t to_send, sent, to_receive, received;
    uint32_t salt;
    uint32_t pace;                  /* bytes that the program reads or writes at a time */
    uint8_t finished;               /* it has sent all, and said so */
};

static uint8_t byte_at(uint32_t salt, uint32_t at)
{
    return (uint8_t)((at * 2654435761u) >> 24 ^ at ^ salt);
}

static void write_some(struct end *end)
{
    uint8_t bytes[4096];
    struct socket *s = end->socket;
    int room = tcp_can_write(s);
    if (end->finished || s->state < NET_ESTABLISHED)
        return;
    if (room < 0)
        fail("a write fails: %d in state %d", room, s->state);
    uint32_t part = least(least((uint32_t)room, end->to_send - end->sent), 1 + random_below(end->pace));
    part = least(part, sizeof bytes);
    for (uint32_t i = 0; i < part; i++)
        bytes[i] = byte_at(end->salt, end->sent + i);
    if (part) {
        ring_put(&s->out, s->out.used, bytes, part);
        s->out.used += part;
        end->sent += part;
        tcp_output(s);
    }
    if (end->sent == end->to_send) {
        end->finished = 1;
        CHECK(tcp_shutdown(s) == 0);
    }
}

static void read_some(struct end *end, uint32_t salt)
{
    uint8_t bytes[4096];
    struct socket *s = end->socket;
    uint32_t part = least(least(s->in.used, 1 + random_below(end->pace)), sizeof bytes);
    ring_get(&s->in, 0, bytes, part);
    for (uint32_t i = 0; i < part; i++)
        if (bytes[i] != byte_at(salt, end->received + i))
            fail("byte %u is wrong", end->received + i);
    ring_drop(&s->in, part);
    end->received += part;
    if (part)
        tcp_read(s);
    if (s->error)
        fail("error %d after %u of %u bytes", s->error, end->received, end->to_receive);
}

static int is_done(const struct end *end)
{
    return end->finished && end->received == end->to_receive && end->socket->in.used == 0 &&
           tcp_at_end(end->socket);
}

static struct socket *new_socket(void)
{
    struct socket *s = socket_new(MINOR_TCP);
    CHECK(s);
    s->attached = 1;
    return s;
}

/* Takes the connection over, as accept does. */
static struct socket *accept_one(struct socket *listener)
{
    struct net_accepted accepted;
    if (tcp_accept(listener, &accepted) == -EAGAIN)
        return NULL;
    struct socket *s = new_socket();
    uint32_t wrong[2] = {accepted.token[0] + 1, accepted.token[1]};
    CHECK(tcp_take(s, wrong) == -ECONNABORTED);
    CHECK(tcp_take(s, accepted.token) == 0);
    CHECK(accepted.peer.address == swap32(THERE));
    return s;
}

static uint32_t packets, lost, resent_segments, bytes;

static void settle(struct wire bad)
{
    wire = bad;
    uint64_t start = now, work = 0;
    struct socket *listener = new_socket();
    struct end client = {.socket = new_socket(), .salt = 1}, server = {.salt = 2};
    client.to_send = server.to_receive = random_below(3) ? random_below(600000) : random_below(3);
    server.to_send = client.to_receive = random_below(3) ? random_below(300000) : random_below(3);
    client.pace = 50 + random_below(random_below(2) ? 4096 : 300);
    server.pace = 50 + random_below(random_below(2) ? 4096 : 300);
    client.socket->nodelay = random_below(2);
    CHECK(socket_bind(listener, 0, PORT) == 0);
    CHECK(tcp_listen(listener, 4) == 0);
    CHECK(tcp_connect(client.socket, THERE, PORT) == 0);
    while (!server.socket || !is_done(&client) || !is_done(&server)) {
        int moved = world_step(20000);
        if (!server.socket && (server.socket = accept_one(listener)))
            moved = 1;
        if (server.socket && random_below(3)) {
            write_some(&server);
            read_some(&server, client.salt);
        }
        if (random_below(3)) {
            write_some(&client);
            read_some(&client, server.salt);
        }
        check_sockets();
        if (++work > STEPS_MAX || now - start > SECONDS_MAX * 1000000ull)
            fail("no end: client %u/%u sent, %u/%u received in state %d, server %u/%u, %u/%u in state %d, "
                 "moved %d",
                 client.sent, client.to_send, client.received, client.to_receive, client.socket->state,
                 server.sent, server.to_send, server.received, server.to_receive,
                 server.socket ? server.socket->state : -1, moved);
    }
    uint32_t resent = client.socket->resent + server.socket->resent;
    packets += wire.sent;
    lost += wire.lost;
    resent_segments += resent;
    bytes += client.to_send + server.to_send;
    /* Bytes that probed the window of a slow reader are sent again. */
    if (!wire.loss && !wire.disorder && resent * 4 > wire.sent)
        fail("segments are sent again, though none was lost");
    socket_close(client.socket);
    socket_close(server.socket);
    socket_close(listener);
    world_pass(400);
    if (sockets_used() || rings_used)
        fail("%u sockets and %u rings are left", sockets_used(), rings_used);
    if (next_due != NEVER && next_due < now + 1000)
        fail("a timer runs though there is nothing to do");
}

void test_streams(uint32_t seed, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct wire bad = {.delay = 20 + random_below(i % 3 ? 3000 : 50000)};
        world_start(seed + i);
        if (i % 5) {
            bad.loss = random_below(2) ? random_below(150) : 0;
            bad.duplication = random_below(2) ? random_below(200) : 0;
            bad.disorder = random_below(2) ? random_below(200) : 0;
        }
        bad.busy = random_below(2) ? random_below(300) : 0;
        settle(bad);
    }
    printf("streams: %u bytes in %u packets, %u lost, %u sent again: all right\n", bytes, packets, lost,
           resent_segments);
}
