/* Replies to requests for characters (tern/device.h), which go by SENDA. */

#ifndef CHARACTER_H
#define CHARACTER_H

#include <stdint.h>
#include <tern/device.h>
#include <tern/ipc.h>

/* Answers request `number` of this process. A reply that finds no room waits for character_retry. */
void character_reply(endpoint_t to, uint32_t number, int32_t result);

/* Sends replies that have waited. Returns in how many microseconds it wants to be called again, 0 if none
   wait. */
uint32_t character_retry(void);

/* Copies the argument of an IOCTL: its size must be the one that the request's number has. Returns 0 or an
   error. */
int ioctl_read(const struct message *request, void *to, uint32_t bytes);
int ioctl_write(const struct message *request, const void *from, uint32_t bytes);

#endif
