/*
 * The client library of ring3's server of disks, "ring3 vblock". The interface is that of libvblock in Joshua
 * Root, "Virtualising Darwin on L4" (2007), appendix A.1, and a few calls that a program on a POSIX system needs.
 *
 * All functions return 0, or an error number of errno.h, unless they say otherwise. They may be called by several
 * threads, and from completion functions. Sizes and offsets are multiples of 512 bytes.
 */
#ifndef VBLOCK_H
#define VBLOCK_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Connects to the client's socket that the variable VBLOCK_SOCKET of the environment names. This must come first.
 * `completion_func` is called with the base of its buffer and 0 or an error number when an asynchronous operation
 * is complete: while one of these functions is executed, by the thread that has called it. It may be NULL.
 */
int vblock_init(void (*completion_func)(char *base, int error));

/* The same with the path of the socket. */
int vblock_init_at(const char *socket, void (*completion_func)(char *base, int error));

/* Ends all connections and frees all buffers. Operations under way are waited for, but for those whose server is away. */
void vblock_exit(void);

/*
 * Returns a reference to a buffer of at least `size` bytes, up to 32 MiB, and its address in `base`; NULL if there
 * is none. A buffer belongs to one operation at a time.
 */
void *vblock_get_buffer(unsigned int size, char **base);

/* Gives a buffer back. One that an operation uses stays until this is done. */
void vblock_return_buffer(void *buf_ref);

/*
 * Devices have the numbers from 0 to vblock_ndevs() - 1. A new device gets the next number; one that has gone keeps
 * its number, has no blocks, and comes back under it.
 */
int vblock_ndevs(void);

/* Returns the name of a device, or NULL if there is none. It is valid until vblock_exit(). */
const char *vblock_name(int devnum);

/* Returns the number of blocks and the bytes in each, which are both 0 if there is no such device now. */
void vblock_get_geometry(int devnum, unsigned long *nblocks, unsigned long *blocksz);

/* Reads or writes, and waits for the end. */
int vblock_read(int devnum, void *buf_ref, unsigned long long offset, unsigned int size);
int vblock_write(int devnum, void *buf_ref, unsigned long long offset, unsigned int size);

/* Begins to read or write. EAGAIN: there is no room for one more now, so call vblock_poll() and try again. */
int vblock_read_async(int devnum, void *buf_ref, unsigned long long offset, unsigned int size);
int vblock_write_async(int devnum, void *buf_ref, unsigned long long offset, unsigned int size);

/* Returns once all that was written before would survive a failure of the host. */
int vblock_sync(int devnum);

/*
 * Waits for completions, or news of devices, for `timeout` milliseconds at most (-1: for ever), and calls the
 * completion function. Returns the number of operations that have ended, or minus an error number.
 */
int vblock_poll(int timeout);

#ifdef __cplusplus
}
#endif
#endif
