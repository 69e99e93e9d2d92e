/* User datagrams (RFC 768). */

#include <string.h>
#include "socket.h"

/* The socket for a datagram: one that is connected to the sender before one that is not. */
static struct socket *find(uint32_t from, uint32_t from_port, uint32_t to, uint32_t to_port, int is_broadcast)
{
    struct socket *found = NULL;
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++) {
        if (!s->used || s->kind != MINOR_UDP || s->local_port != to_port || !s->bound ||
            (s->local && s->local != to && !is_broadcast))
            continue;
        if (s->peer_port && s->peer == from && s->peer_port == from_port)
            return s;
        if (!s->peer_port && !found)
            found = s;
    }
    return found;
}

void udp_received(const struct packet *packet)
{
    const uint8_t *header = packet->data;
    if (packet->bytes < UDP_HEADER)
        return;
    uint32_t bytes = get16(header + 4), from_port = get16(header), to_port = get16(header + 2);
    if (bytes < UDP_HEADER || bytes > packet->bytes)
        return;
    /* A checksum of 0 means that there is none. */
    if (get16(header + 6) && checksum_between(packet->from, packet->to, PROTOCOL_UDP, header, bytes))
        return;
    if (to_port == DHCP_CLIENT && from_port == DHCP_SERVER && !packet->interface->loopback) {
        dhcp_received(packet->interface, header + UDP_HEADER, bytes - UDP_HEADER);
        return;
    }
    struct socket *socket = find(packet->from, from_port, packet->to, to_port, packet->is_broadcast);
    if (socket)
        datagram_put(socket, packet->from, from_port, header + UDP_HEADER, bytes - UDP_HEADER);
    else if (packet->interface->address)
        icmp_unreachable(packet, UNREACHABLE_PORT);
}

void udp_unreachable(uint32_t from, uint32_t to, uint32_t from_port, uint32_t to_port, int error)
{
    struct socket *socket = find(to, to_port, from, from_port, 0);
    if (socket && socket->peer_port)
        socket_fail(socket, error);
}

void udp_make(uint32_t from_port, uint32_t to_port, uint32_t bytes, uint32_t from, uint32_t to)
{
    uint8_t *header = ip_data();
    put16(header, from_port);
    put16(header + 2, to_port);
    put16(header + 4, UDP_HEADER + bytes);
    put16(header + 6, 0);
    uint16_t sum = checksum_between(from, to, PROTOCOL_UDP, header, UDP_HEADER + bytes);
    put16(header + 6, sum ? sum : 0xffff);
}

int udp_send(struct socket *socket, const struct net_address *to, const uint8_t *data, uint32_t bytes)
{
    uint32_t address = to->port ? swap32(to->address) : socket->peer;
    uint32_t port = to->port ? swap16(to->port) : socket->peer_port;
    if (!port)
        return -EDESTADDRREQ;
    if (bytes > NET_MESSAGE_MAX)
        return -EMSGSIZE;
    if (address == 0)
        address = LOOPBACK;
    uint32_t from = socket->local ? socket->local : ip_source(address);
    if (!from)
        return -ENETUNREACH;
    int result = socket_bind_any(socket, 0, 0);
    if (result)
        return result;
    memcpy(ip_data() + UDP_HEADER, data, bytes);
    udp_make(socket->local_port, port, bytes, from, address);
    result = ip_send(PROTOCOL_UDP, from, address, UDP_HEADER + bytes);
    /* One that is lost because the card is busy is lost as on the way (RFC 1122, section 4.1.3.3). */
    return result && result != -EAGAIN ? result : (int)bytes;
}
