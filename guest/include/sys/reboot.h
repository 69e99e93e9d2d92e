/* The end of the system. */

#ifndef SYS_REBOOT_H
#define SYS_REBOOT_H

#include <tern/calls.h> /* ABORT_ */

/* Writes all files, then ends or restarts the machine. */
int reboot(int how, unsigned value);

#endif
