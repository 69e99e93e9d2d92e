/* The tests of the network's protocols on the host: a world in which time passes only when the test lets
   it. */

#ifndef HOST_H
#define HOST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../servers/net/socket.h"

#define fail(...) (printf("FAILED (%s:%d): ", __FILE__, __LINE__), printf(__VA_ARGS__), printf("\n"), exit(1))
#define CHECK(condition) ((condition) ? (void)0 : fail("not so: %s", #condition))

/* 10.0.0.1 is this side, and 10.0.0.2 the other one: the wire sends every packet back with both addresses
   exchanged, so the protocols talk to themselves as to a stranger. Checksums do not change by that. */
#define HERE 0x0a000001u
#define THERE 0x0a000002u

struct wire {
    uint32_t loss, duplication, disorder; /* of 1000 packets; those out of order come up to 20 ms late */
    uint32_t delay;                       /* microseconds */
    uint32_t busy;                        /* of 1000 packets: the card has no room */
    uint32_t sent, lost;
    uint8_t keeps;                        /* nothing comes back: the test looks at the last frame itself */
    uint8_t frame[FRAME_MAX];
    uint32_t bytes;
};

extern struct wire wire;
extern struct interface *card;
extern uint8_t socket_events[SOCKETS];
extern uint32_t rings_used;

void world_start(uint64_t seed);
/* Lets the next thing happen, at most so many microseconds from now. Returns whether there was one. */
int world_step(uint32_t most);
void world_pass(uint32_t seconds);
uint32_t random_below(uint32_t limit);

/* Gives the server a frame with this packet of IP, whose header is made around the data. */
void give_ip(uint32_t protocol, uint32_t from, uint32_t to, const uint8_t *data, uint32_t bytes, uint32_t id,
             uint32_t part);
/* Computes the checksum of a TCP segment or of an ICMP message. */
void sum_tcp(uint8_t *data, uint32_t bytes, uint32_t from, uint32_t to);
void sum_icmp(uint8_t *data, uint32_t bytes);

/* What must hold at any time. */
void check_sockets(void);
uint32_t sockets_used(void);

void test_parts(void);
void test_streams(uint32_t seed, uint32_t count);
void test_hostile(uint32_t seed, uint32_t count);

#endif
