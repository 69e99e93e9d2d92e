/* Requests of POSIX's functions to PM and FS. */

#ifndef REQUEST_H
#define REQUEST_H

#include <tern/ipc.h>
#include <tern/rights.h>

/* Sends the request in *message to a server. Returns the reply's type if it is not negative; otherwise sets
   errno and returns -1. The reply is in *message. */
int request(endpoint_t server, int32_t type, struct message *message);

/* The same with up to three arguments; returns 0 or -1. */
int pm_call(int32_t type, uint32_t first, uint32_t second, uint32_t third);
int fs_call(int32_t type, uint32_t first, uint32_t second, uint32_t third);

/* Those whose result is w[0] of the reply: it must not be -1. */
int pm_value(int32_t type, uint32_t first, uint32_t second, uint32_t third);
int fs_value(int32_t type, uint32_t first, uint32_t second, uint32_t third);

/* Requests with a path as w[0] and w[1], and two more words. */
int path_call(int32_t type, const char *path, uint32_t third, uint32_t fourth);
int path_value(int32_t type, const char *path, uint32_t third, uint32_t fourth);

/* An address as a word of a message. */
#define WORD(pointer) ((uint32_t)(pointer))

#endif
