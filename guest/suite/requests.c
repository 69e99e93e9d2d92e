/*
 * Requests to a disk, so many of them under way at a time (io_submit of Linux, past the kernel's cache), for
 * whoever measures disks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "suite.h"

#define LARGEST (1u << 20)
#define MOST_AT_A_TIME 64u

struct job {
    int writes, is_random;
    uint32_t bytes, depth, count;
    uint64_t blocks;
};

/* Fills CB with request number I, whose memory is that of number SLOT. */
static void prepare(const struct job *job, struct iocb *cb, int disk, uint8_t *memory, uint32_t slot,
                    uint32_t i)
{
    uint64_t block = job->is_random ? next_random(next_random(i * 2654435761u)) : i;
    memset(cb, 0, sizeof *cb);
    cb->aio_data = slot;
    cb->aio_fildes = disk;
    cb->aio_lio_opcode = job->writes ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
    cb->aio_buf = (uintptr_t)(memory + (size_t)slot * job->bytes);
    cb->aio_nbytes = job->bytes;
    cb->aio_offset = block % job->blocks * job->bytes;
}

static void submit(aio_context_t context, struct iocb *cb)
{
    if (syscall(SYS_io_submit, context, 1, &cb) != 1)
        fail("io_submit");
}

/* Does all requests. A new one begins as soon as one has ended. */
static void work(const struct job *job, int disk, uint8_t *memory)
{
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, job->depth, &context) != 0)
        fail("io_setup");
    static struct iocb requests[MOST_AT_A_TIME];
    struct io_event ended[MOST_AT_A_TIME];
    uint32_t begun = 0, done = 0;
    for (; begun < job->depth && begun < job->count; begun++) {
        prepare(job, &requests[begun], disk, memory, begun, begun);
        submit(context, &requests[begun]);
    }
    while (done < job->count) {
        long number = syscall(SYS_io_getevents, context, 1, job->depth, ended, NULL);
        if (number < 1)
            fail("io_getevents");
        for (long at = 0; at < number; at++) {
            if (ended[at].res != job->bytes) {
                errno = ended[at].res < 0 ? -ended[at].res : EIO;
                fail("a request");
            }
            if (begun < job->count) {
                uint32_t slot = ended[at].data;
                prepare(job, &requests[slot], disk, memory, slot, begun++);
                submit(context, &requests[slot]);
            }
        }
        done += number;
    }
    syscall(SYS_io_destroy, context);
}

/* FILE read|write random|sequential BYTES DEPTH COUNT. */
int requests(char *arguments[])
{
    struct job job = {
        .writes = strcmp(arguments[1], "write") == 0,
        .is_random = strcmp(arguments[2], "random") == 0,
        .bytes = strtoul(arguments[3], NULL, 10),
        .depth = strtoul(arguments[4], NULL, 10),
        .count = strtoul(arguments[5], NULL, 10),
    };
    if (job.bytes < 512 || job.bytes > LARGEST || job.depth < 1 || job.depth > MOST_AT_A_TIME) {
        fprintf(stderr, "suite: %u bytes, %u at a time: not possible\n", job.bytes, job.depth);
        return 2;
    }
    int disk = open(arguments[0], O_RDWR | O_DIRECT);
    if (disk < 0)
        fail(arguments[0]);
    off64_t size = lseek64(disk, 0, SEEK_END);
    if (size < job.bytes)
        fail("lseek64");
    job.blocks = size / job.bytes;
    void *memory;
    if (posix_memalign(&memory, 4096, (size_t)job.bytes * job.depth) != 0)
        fail("posix_memalign");
    memset(memory, 0x5a, (size_t)job.bytes * job.depth);
    work(&job, disk, memory);
    printf("requests %u\n", job.count);
    return 0;
}
