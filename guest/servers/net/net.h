/* The network server: what its files share. From below: interfaces with ARP, IP, and on it ICMP, UDP and TCP.
   All of it is driven by three things: a frame that has come, a request of a program, and time that has
   passed. Nothing here calls the kernel but main.c, cards.c and requests.c, so that the rest can be tested on
   a host. */

#ifndef NET_SERVER_H
#define NET_SERVER_H

#include <stddef.h>
#include <stdint.h>
#include <tern/errno.h>
#include <tern/net.h>

/* Numbers in packets are big-endian and need not be aligned. */
static inline uint32_t get16(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

static inline uint32_t get32(const uint8_t *at)
{
    return get16(at) << 16 | get16(at + 2);
}

static inline void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void put32(uint8_t *at, uint32_t value)
{
    put16(at, value >> 16);
    put16(at + 2, value);
}

/* Addresses and ports are numbers of this machine, 10.0.2.15 is 0a00020fh; only packets and tern/net.h have
   the network's order. */
static inline uint32_t swap32(uint32_t value)
{
    return value << 24 | (value & 0xff00) << 8 | (value >> 8 & 0xff00) | value >> 24;
}

static inline uint16_t swap16(uint16_t value)
{
    return (uint16_t)(value << 8 | value >> 8);
}

/* ---- outside.h of the test gives these, or main.c and cards.c. ---- */

struct interface;

/* Gives a frame to the card. Returns 0, EAGAIN (negated) if it has no room now, or another error. */
int card_send(struct interface *interface, const uint8_t *frame, uint32_t bytes);

/* Memory of RING_BYTES; NULL if there is none. */
#define RING_BYTES 65536u
uint8_t *ring_allocate(void);
void ring_release(uint8_t *ring);

/* Microseconds since the start, when the event came that is being handled; and bits that nobody can guess. */
extern uint64_t now;
uint64_t entropy(void);

void report(const char *format, ...);

/* A socket can do something that it could not do before, or has an error: those who wait for it try again. */
struct socket;
void socket_changed(struct socket *socket);

/* ---- interface.c ---- */

#define MTU 1500u
#define ETHERNET_HEADER 14u
#define FRAME_MAX (ETHERNET_HEADER + MTU)
#define TYPE_IP 0x0800
#define TYPE_ARP 0x0806
#define BROADCAST 0xffffffffu
#define LOOPBACK 0x7f000001u
#define LOOPBACK_MASK 0xff000000u

enum dhcp_state { DHCP_OFF, DHCP_SELECTING, DHCP_REQUESTING, DHCP_BOUND, DHCP_RENEWING, DHCP_REBINDING };

struct interface {
    char name[16];                  /* empty: the entry is free */
    uint8_t ethernet[6];
    uint8_t loopback, up;
    uint32_t address, mask, gateway; /* address 0: not configured */
    uint32_t nameservers[NET_NAMESERVERS];
    uint32_t frames_in, frames_out, bytes_in, bytes_out, dropped, drivers;
    uint64_t lost_at;               /* when its last driver went */

    /* A frame for which the card had no room. Until it is sent the interface takes no other. */
    uint32_t held_bytes;
    uint8_t held[FRAME_MAX];
    uint64_t held_since;

    enum dhcp_state dhcp;
    uint32_t dhcp_id, dhcp_server, dhcp_offer, dhcp_tries;
    uint64_t dhcp_due, lease_start;
    uint32_t lease, renew, rebind;  /* seconds from lease_start */
};

extern struct interface interfaces[NET_INTERFACES];

void interfaces_start(void);
/* or the one that has this name; NULL if there are too many */
struct interface *interface_add(const char *name);
void interface_configure(struct interface *interface, uint32_t address, uint32_t mask, uint32_t gateway);
int interface_set(const struct net_setting *setting);
void interface_list(struct net_interfaces *to);
void interface_up(struct interface *interface);
void interface_down(struct interface *interface);
void interface_room(struct interface *interface);   /* the card may have room again */
void frame_received(struct interface *interface, const uint8_t *frame, uint32_t bytes);
int frame_send(struct interface *interface, const uint8_t *to, uint32_t type, uint8_t *frame, uint32_t bytes);
int is_own_address(uint32_t address);
int is_broadcast(const struct interface *interface, uint32_t address);
int is_mask(uint32_t mask);                         /* ones, then zeros */

/* The interface and the neighbour by which an address is reached; NULL if there is none. */
struct interface *route(uint32_t address, uint32_t *neighbour);

/* Frames to oneself wait here, because whoever sends them is in the middle of something. Returns whether
   there was one. */
int loopback_step(void);
int loopback_waiting(void);
int loopback_put(const uint8_t *packet, uint32_t bytes);
void interfaces_timer(void);

/* ---- arp.c (RFC 826) ---- */

void arp_received(struct interface *interface, const uint8_t *packet, uint32_t bytes);
/* Sends an IP packet, whose frame has room for the header of Ethernet, or keeps it until the neighbour
   answers. */
int arp_send(struct interface *interface, uint32_t neighbour, uint8_t *frame, uint32_t bytes);
void arp_announce(struct interface *interface);
void arp_forget(const struct interface *interface);
void arp_timer(void);

/* ---- ip.c (RFC 791) ---- */

#define IP_HEADER 20u
#define PROTOCOL_ICMP 1
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define DATAGRAM_MAX (NET_MESSAGE_MAX + 8u)   /* of IP's data: that of UDP and its header */

struct packet {
    struct interface *interface;
    uint32_t from, to;
    uint32_t protocol;
    const uint8_t *header;          /* of IP, for ICMP errors */
    uint32_t header_bytes;
    const uint8_t *data;
    uint32_t bytes;
    uint8_t is_broadcast;
};

/* bytes is even but for the last part */
uint32_t checksum_add(uint32_t sum, const uint8_t *from, uint32_t bytes);
uint16_t checksum_end(uint32_t sum);
/* That of TCP and UDP, which covers addresses and length too; of data that has it already, 0. */
uint16_t checksum_between(uint32_t from, uint32_t to, uint32_t protocol, const uint8_t *data, uint32_t bytes);

void ip_received(struct interface *interface, const uint8_t *packet, uint32_t bytes);

/* Where a protocol makes the data of the next packet, at most DATAGRAM_MAX bytes. */
uint8_t *ip_data(void);
/* Sends it. `from` 0: the interface's own address. Returns 0 or an error; EAGAIN means that the card is
   busy. */
int ip_send(uint32_t protocol, uint32_t from, uint32_t to, uint32_t bytes);
int ip_send_by(struct interface *interface, uint32_t protocol, uint32_t from, uint32_t to, uint32_t neighbour,
               uint32_t bytes);
/* The address that packets to this one come from; 0 if it cannot be reached. */
uint32_t ip_source(uint32_t to);

/* fragments.c: joins fragments. Returns 1 with the whole in *packet when this was the last that was
   missing. */
int fragment_received(struct packet *packet, uint32_t id, uint32_t offset, int more);

/* ---- icmp.c (RFC 792) ---- */

#define ICMP_UNREACHABLE 3
#define UNREACHABLE_PORT 3

void icmp_received(const struct packet *packet);
void icmp_unreachable(const struct packet *packet, uint32_t code);
int icmp_send(struct socket *socket, uint32_t to, uint8_t *message, uint32_t bytes);

/* ---- udp.c (RFC 768) ---- */

void udp_received(const struct packet *packet);
void udp_unreachable(uint32_t from, uint32_t to, uint32_t from_port, uint32_t to_port, int error);
int udp_send(struct socket *socket, const struct net_address *to, const uint8_t *data, uint32_t bytes);
/* around ip_data */
void udp_make(uint32_t from_port, uint32_t to_port, uint32_t bytes, uint32_t from, uint32_t to);
#define UDP_HEADER 8u

/* ---- dhcp.c (RFC 2131) ---- */

#define DHCP_CLIENT 68
#define DHCP_SERVER 67

void dhcp_start(struct interface *interface);
void dhcp_stop(struct interface *interface);
void dhcp_received(struct interface *interface, const uint8_t *data, uint32_t bytes);
void dhcp_timer(void);

/* ---- timers ---- */

/* The earliest of all that is due; whoever waits for something lowers it. Ringing too early costs little. */
extern uint64_t next_due;
#define NEVER (~0ull)

static inline void expect(uint64_t when)
{
    if (when && when < next_due)
        next_due = when;
}

static inline int is_due(uint64_t when)
{
    if (when && when > now)
        expect(when);
    return when && when <= now;
}

void timers_ring(void);             /* does what is due, and sets next_due anew */

/* random.c */
uint32_t random_number(void);
uint64_t keyed_hash(const void *data, uint32_t bytes);  /* SipHash-2-4 with a key of this start */

#endif
