/* Options of TCP. */

#ifndef NETINET_TCP_H
#define NETINET_TCP_H

#define TCP_NODELAY 1

#endif
