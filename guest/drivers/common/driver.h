/* The frame of a driver: arguments, interrupts, waiting for the device, and the loop. */

#ifndef DRIVER_H
#define DRIVER_H

#include <stdint.h>
#include <tern/server.h>

/* Takes the arguments, which are NAME=VALUE (tern/rs.h), and chooses the way to reach ports. */
void driver_start(int argc, char **argv);

/* The value of an argument, or `otherwise`. Numbers may be decimal, or hexadecimal with 0x. */
const char *driver_option(const char *name, const char *otherwise);
uint32_t driver_number(const char *name, uint32_t otherwise);

/* Number i of what RS has given: a range of ports, a range of device memory, a line. Returns whether there
   are so many. */
int driver_ports(uint32_t i, uint16_t *first, uint16_t *last);
int driver_memory(uint32_t i, uint32_t *base, uint32_t *bytes);
int driver_line(uint32_t i, uint32_t *line);

/* Serves for ever. After each message, and when so many microseconds have passed since, `idle` (which may be
   NULL) is called; it returns in how many microseconds it wants to be called again, 0 for no time. */
void driver_run(const struct server *server, uint32_t (*idle)(void));

/* Asks the kernel to notify this driver of a line, which interrupt_enable (ports.h) unmasks again after an
   interrupt. */
int interrupt_attach(uint32_t line);

/* Waits, at most so long, until one of these lines interrupts, and returns those that did (0: none in time).
   Pings are answered meanwhile; requests are kept until the driver is back in its loop. So a device that
   never answers does not make the driver look dead. */
uint32_t driver_wait(uint32_t lines, uint32_t microseconds);

/* Lets time pass, as driver_wait does. */
void driver_pause(uint32_t microseconds);

/* Microseconds since the start of the system. */
uint64_t driver_now(void);

#endif
