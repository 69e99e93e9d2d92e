/* Addresses as text. */

#ifndef ARPA_INET_H
#define ARPA_INET_H

#include <netinet/in.h>

int inet_pton(int family, const char *text, void *to);
const char *inet_ntop(int family, const void *from, char *to, socklen_t bytes);
int inet_aton(const char *text, struct in_addr *to); /* four numbers with dots */
in_addr_t inet_addr(const char *text);
char *inet_ntoa(struct in_addr from);

#endif
