/* Requests to devices. */

#ifndef SYS_IOCTL_H
#define SYS_IOCTL_H

#include <tern/device.h>

int ioctl(int fd, unsigned long request, ...);

/* The state of a terminal. */
int terminal_get(int fd, struct terminal *state);
int terminal_set(int fd, const struct terminal *state);

#endif
