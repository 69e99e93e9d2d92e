/* What connects the network with the rest of the system. */

#ifndef NET_KERNEL_H
#define NET_KERNEL_H

#include <tern/ipc.h>
#include "socket.h"

/* cards.c */
void card_up(const struct message *m);
void card_notified(endpoint_t source);
int cards_receive(void);            /* a bounded number of frames; returns whether there may be more */
void cards_timer(void);

/* requests.c */
int net_request(struct message *m);
void requests_retry(void);          /* those whose sockets have changed */

#endif
