/* Questions to name servers. */

#ifndef DNS_H
#define DNS_H

#include <stdint.h>

#define DNS_NAME 256
#define DNS_ADDRESSES 8

struct dns_answer {
    char name[DNS_NAME];       /* the canonical one */
    uint32_t count;
    uint32_t addresses[DNS_ADDRESSES];
};

/* Returns 0 or an error of h_errno. */
int dns_ask(const char *name, struct dns_answer *answer);

#endif
