/* Control messages (RFC 792): echoes, and errors. */

#include <string.h>
#include "socket.h"

#define ICMP_HEADER 8u
#define ECHO_REPLY 0
#define ECHO 8
#define TIME_EXCEEDED 11
#define QUOTED 8u                   /* bytes of the packet's data in an error */
#define ERRORS_PER_SECOND 50

static int send(uint32_t from, uint32_t to, uint32_t bytes)
{
    uint8_t *message = ip_data();
    put16(message + 2, 0);
    put16(message + 2, checksum_end(checksum_add(0, message, bytes)));
    return ip_send(PROTOCOL_ICMP, from, to, bytes);
}

static void answer_echo(const struct packet *packet)
{
    uint8_t *message = ip_data();
    if (packet->is_broadcast)
        return;
    memcpy(message, packet->data, packet->bytes);
    message[0] = ECHO_REPLY;
    send(packet->to, packet->from, packet->bytes);
}

static struct socket *asker(uint32_t identifier, uint32_t peer)
{
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++)
        if (s->used && s->kind == MINOR_ICMP && s->local_port == identifier && (!s->peer || s->peer == peer))
            return s;
    return NULL;
}

/* Something that we have sent did not arrive (RFC 1122, section 3.2.2). */
static void error_received(const struct packet *packet)
{
    const uint8_t *quoted = packet->data + ICMP_HEADER;
    uint32_t bytes = packet->bytes - ICMP_HEADER, header = bytes ? (quoted[0] & 15) * 4u : 0;
    if (header < IP_HEADER || bytes < header + QUOTED)
        return;
    uint32_t from = get32(quoted + 12), to = get32(quoted + 16), code = packet->data[1];
    const uint8_t *data = quoted + header;
    int error =
        packet->data[0] == ICMP_UNREACHABLE && code == UNREACHABLE_PORT ? -ECONNREFUSED : -EHOSTUNREACH;
    if (!is_own_address(from) || (packet->data[0] == ICMP_UNREACHABLE && code == 4))
        return; /* nothing here forbids fragments, so code 4 is a lie */
    if (quoted[9] == PROTOCOL_TCP)
        tcp_unreachable(from, to, get16(data), get16(data + 2), get32(data + 4), error);
    else if (quoted[9] == PROTOCOL_UDP)
        udp_unreachable(from, to, get16(data), get16(data + 2), error);
    else if (quoted[9] == PROTOCOL_ICMP && data[0] == ECHO && asker(get16(data + 4), to))
        socket_fail(asker(get16(data + 4), to), error);
}

void icmp_received(const struct packet *packet)
{
    if (packet->bytes < ICMP_HEADER || checksum_end(checksum_add(0, packet->data, packet->bytes)))
        return;
    struct socket *socket;
    switch (packet->data[0]) {
    case ECHO:
        answer_echo(packet);
        break;
    case ECHO_REPLY:
        socket = asker(get16(packet->data + 4), packet->from);
        if (socket)
            datagram_put(socket, packet->from, 0, packet->data, packet->bytes);
        break;
    case ICMP_UNREACHABLE:
    case TIME_EXCEEDED:
        error_received(packet);
        break;
    }
}

/* At most so many a second, which makes us no amplifier (RFC 1812, section 4.3.2.8). */
static int may_send_error(void)
{
    static uint64_t second;
    static uint32_t sent;
    if (now - second >= 1000000) {
        second = now;
        sent = 0;
    }
    return sent++ < ERRORS_PER_SECOND;
}

void icmp_unreachable(const struct packet *packet, uint32_t code)
{
    uint8_t *message = ip_data();
    uint32_t quoted = packet->header_bytes + least(packet->bytes, QUOTED);
    if (packet->is_broadcast || !may_send_error())
        return;
    memset(message, 0, ICMP_HEADER);
    message[0] = ICMP_UNREACHABLE;
    message[1] = (uint8_t)code;
    memcpy(message + ICMP_HEADER, packet->header, packet->header_bytes);
    memcpy(message + ICMP_HEADER + packet->header_bytes, packet->data, quoted - packet->header_bytes);
    send(packet->to, packet->from, ICMP_HEADER + quoted);
}

/* Only echo requests; the identifier says whose the answer is. */
int icmp_send(struct socket *socket, uint32_t to, uint8_t *message, uint32_t bytes)
{
    if (bytes < ICMP_HEADER || message[0] != ECHO)
        return -EINVAL;
    if (!socket->local_port)
        do
            socket->local_port = random_number();
        while (!socket->local_port);
    message[1] = 0;
    put16(message + 4, socket->local_port);
    memcpy(ip_data(), message, bytes);
    int result = send(socket->local, to, bytes);
    return result ? result : (int)bytes;
}
