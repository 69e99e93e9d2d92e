/* The network server. An open of one of its device files gives a socket of its own, which reads, writes,
   waits (select) and ends as a file does. The other requests are IOCTLs. Addresses and ports are in the order
   of the network (big-endian), as POSIX has them. */

#ifndef TERN_NET_H
#define TERN_NET_H

#include <stdint.h>
#include <tern/device.h>

/* Minor numbers of MAJOR_NET. Sockets have those from NET_FIRST_SOCKET on. */
#define MINOR_TCP 0
#define MINOR_UDP 1
#define MINOR_ICMP 2           /* echo requests: the server fills in identifier and checksum */
#define NET_FIRST_SOCKET 8

struct net_address {
    uint32_t address;
    uint16_t port, zero;
};

/* Data with an address. The argument of NET_SEND and NET_RECEIVE is this and so many bytes behind it, in a
   request whose number has the size of both. */
struct net_message {
    struct net_address address; /* to which it goes (0: that of NET_CONNECT), or from which it came */
    uint32_t flags;             /* NET_DONTWAIT, NET_PEEK */
    uint32_t bytes;             /* NET_RECEIVE: those of the datagram, of which the rest is lost */
};

#define NET_DONTWAIT 1
#define NET_PEEK 2
#define NET_MESSAGE_MAX 8192    /* data of a datagram, and of one NET_SEND or NET_RECEIVE */
#define NET_SIZE(request, bytes) ((request) + ((uint32_t)(bytes) << 16))

/* A connection that has been accepted. It becomes that of another open file, new and of TCP, by NET_TAKE. */
struct net_accepted {
    struct net_address peer;
    uint32_t token[2];
};

struct net_option {
    uint32_t option;            /* NET_OPTION_ */
    uint32_t value;
};

#define NET_OPTION_NODELAY 1    /* small segments are sent at once (TCP_NODELAY) */
#define NET_OPTION_REUSE 2      /* SO_REUSEADDR */
#define NET_OPTION_KEEPALIVE 3  /* SO_KEEPALIVE */

/* States of TCP (RFC 9293, section 3.3.2); those of other sockets are CLOSED. */
enum net_state {
    NET_CLOSED, NET_LISTENING, NET_SYN_SENT, NET_SYN_RECEIVED, NET_ESTABLISHED, NET_FIN_WAIT_1,
    NET_FIN_WAIT_2, NET_CLOSE_WAIT, NET_CLOSING, NET_LAST_ACK, NET_TIME_WAIT
};

struct net_socket {
    struct net_address local, peer;
    uint32_t kind;              /* MINOR_TCP, MINOR_UDP, MINOR_ICMP */
    uint32_t state;
    uint32_t received, unsent;  /* bytes that wait to be read, and to be sent or acknowledged */
    uint32_t resent;            /* segments of TCP */
    int32_t error;              /* positive; NET_ERROR forgets it */
};

#define NET_SOCKETS_AT_ONCE 32

struct net_sockets {
    uint32_t first;             /* on entry, and on return of those that come next (0: no more) */
    uint32_t count;
    struct net_socket sockets[NET_SOCKETS_AT_ONCE];
};

/* Interfaces: lo and those of cards, with the names of their drivers. */
#define NET_INTERFACES 5
#define NET_NAMESERVERS 3

struct net_interface {
    char name[16];
    uint8_t ethernet[6];
    uint8_t up, dhcp;           /* up: it has a driver. dhcp: 0 static, 1 asking, 2 configured by it */
    uint32_t address, mask, gateway;
    uint32_t nameservers[NET_NAMESERVERS];
    uint32_t lease;             /* seconds that are left of DHCP's */
    uint32_t frames_in, frames_out, bytes_in, bytes_out, dropped, drivers; /* drivers: that it has had */
};

struct net_interfaces {
    uint32_t count;
    struct net_interface interfaces[NET_INTERFACES];
};

/* The interface of this name gets an address, or gets it by DHCP. */
struct net_setting {
    char name[16];
    uint32_t dhcp;              /* 1: the others mean nothing */
    uint32_t address, mask, gateway;
    uint32_t nameservers[NET_NAMESERVERS];
};

#define NET_CONNECT IOCTL_SET('n', 1, struct net_address)
#define NET_BIND IOCTL_SET('n', 2, struct net_address)
#define NET_LISTEN IOCTL_SET('n', 3, uint32_t)             /* how many connections may wait */
#define NET_ACCEPT IOCTL_GET('n', 4, struct net_accepted)  /* waits for one */
#define NET_TAKE IOCTL_SET('n', 5, uint32_t[2])            /* the token */
#define NET_SEND IOCTL_SET('n', 6, struct net_message)     /* -> bytes */
#define NET_RECEIVE (IOCTL_GET('n', 7, struct net_message) | 0x80000000u) /* -> bytes */
#define NET_SHUTDOWN IOCTL_SET('n', 8, uint32_t)           /* 0: reading, 1: writing, 2: both */
#define NET_OPTION IOCTL_SET('n', 9, struct net_option)
#define NET_SOCKET IOCTL_GET('n', 10, struct net_socket)
#define NET_SOCKETS (IOCTL_GET('n', 11, struct net_sockets) | 0x80000000u)
#define NET_LIST IOCTL_GET('n', 12, struct net_interfaces)
#define NET_ERROR IOCTL_GET('n', 14, int32_t)
#define NET_SET IOCTL_SET('n', 13, struct net_setting)

#endif
