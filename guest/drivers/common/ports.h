/* Access to ports, each by the way that was chosen for this start of the driver (tern/hal.h): the argument
   way=message, direct, trap, bitmap or kernel. Without it ports are reached by messages.

   A port that the driver has no right to reads as all ones, as a port without a device does; the kernel logs
   the attempt, and port_failures counts it. */

#ifndef PORTS_H
#define PORTS_H

#include <stdint.h>
#include <tern/hal.h>

/* Chooses the way by its name; returns whether there is such a way. */
int ports_choose(const char *name);

extern uint32_t port_failures;

uint8_t in_byte(uint16_t port);
uint16_t in_word(uint16_t port);
uint32_t in_double(uint16_t port);
void out_byte(uint16_t port, uint8_t value);
void out_word(uint16_t port, uint16_t value);
void out_double(uint16_t port, uint32_t value);

/* Strings: so many elements of the port, one after the other, to or from memory. */
void in_bytes(uint16_t port, void *to, uint32_t count);
void in_words(uint16_t port, void *to, uint32_t count);
void in_doubles(uint16_t port, void *to, uint32_t count);
void out_bytes(uint16_t port, const void *from, uint32_t count);
void out_words(uint16_t port, const void *from, uint32_t count);
void out_doubles(uint16_t port, const void *from, uint32_t count);

/* A copy between the driver's memory and what `granter` has granted it (SYS_SAFECOPY), by a direct call unless
   ports are reached by messages. */
int granted_copy(endpoint_t granter, uint32_t grant, uint32_t offset, void *address, uint32_t bytes,
                 uint32_t direction);

/* Unmasks a line after its interrupt, in the same way. */
void interrupt_enable(uint32_t line);

/* A vector of accesses, in this order; values read are put into it. At most PORT_VECTOR of them. */
#define PORT_VECTOR 64
void port_vector(struct port_access *accesses, uint32_t count);

#endif
