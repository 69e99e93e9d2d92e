/* What the file systems need from outside: memory, time, block devices and a log. The server gives it by
   kernel calls and drivers, the tests give it by the host. */

#ifndef OUTSIDE_H
#define OUTSIDE_H

#include <stddef.h>
#include <stdint.h>

#define PAGE 4096u

void *page_allocate(void);         /* of zeros; NULL if there is none */
void page_release(void *page);

/* pool.c: blocks of at most a page, made from pages. They are zeros. */
void *allocate(uint32_t bytes);
void release(void *block, uint32_t bytes);

uint32_t now(void);                /* seconds since 1970 */
void report(const char *what, uint32_t device);

/* Sectors of 512 bytes, at most TRANSFER_BYTES at once. Return 0 or a negative error. */
#define TRANSFER_BYTES 65536u
int device_read(uint32_t device, uint32_t sector, void *to, uint32_t bytes);
int device_write(uint32_t device, uint32_t sector, const void *from, uint32_t bytes);
int device_flush(uint32_t device);

#endif
