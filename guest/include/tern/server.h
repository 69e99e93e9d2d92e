/* The frame of a server or driver: a loop that receives messages, answers the pings of RS, and calls the
   functions of the server. A server that needs another order of things uses server_step. */

#ifndef TERN_SERVER_H
#define TERN_SERVER_H

#include <stdint.h>
#include <tern/ipc.h>

/* Handles a request. The reply is made in *message from w[0] on; returns its type (0 or a negative error), or
   NO_REPLY if the requester gets none now (then the server sends it later by server_reply). */
typedef int server_handler(struct message *message);

#define NO_REPLY 1

struct server_request {
    int32_t type;              /* 0 ends the table */
    server_handler *handle;
};

/* Any function may be NULL. */
struct server {
    const struct server_request *requests;
    server_handler *other;     /* for requests that are not in the table; without it they get ENOSYS */
    void (*interrupt)(uint32_t lines); /* a bit for each line that interrupted */
    void (*alarm)(uint64_t microseconds);
    void (*event)(void);       /* SYSTEM notified: events wait for GETEVENT */
    void (*notified)(endpoint_t source);
    int (*save)(void);         /* saves the state in DS for the successor; an error stops the upgrade */
};

/* Tells RS that the service can serve, then serves for ever. */
void server_run(const struct server *server);

/* Tells RS that the service can serve: server_run does it itself. */
void server_ready(void);

/* Receives and handles one message. Waits at most so many microseconds (0: no limit); returns 0 or ETIMEDOUT,
   negated. */
int server_step(const struct server *server, uint32_t microseconds);

/* Handles a request, and replies to it. */
void server_handle(const struct server *server, struct message *message);

/* Sends a reply without ever waiting: a requester that does not wait for it (any more) does not get it.
   Returns whether it was received. */
int server_reply(endpoint_t to, int32_t type, struct message *message);

/* Sends a message without waiting; the kernel delivers it when `to` receives. At most SERVER_POSTS of them
   wait at a time: returns EAGAIN, negated, if there is no room. */
int server_post(endpoint_t to, const struct message *message);

#define SERVER_POSTS (ASYNCHRONOUS_MAX - 1)

/* RS's endpoint, once server_ready has been called. */
endpoint_t server_rs(void);

/* Ends the service: RS treats it by its policy. */
void server_end(int status);

#endif
