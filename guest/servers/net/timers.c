/* What is due when. */

#include "socket.h"

uint64_t next_due = NEVER;

void timers_ring(void)
{
    next_due = NEVER;
    interfaces_timer();
    arp_timer();
    dhcp_timer();
    tcp_timer();
}
