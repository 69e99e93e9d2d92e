/* Block devices: partitions, minor numbers and the requests of the file system (tern/device.h). The driver
   reads and writes sectors of 512 bytes to and from memory of its own. */

#ifndef BLOCK_H
#define BLOCK_H

#include <stdint.h>
#include <tern/device.h>
#include <tern/server.h>

#define SECTOR_BYTES 512u
#define PARTITIONS_MAX 16
#define DISKS_MAX 4

struct disk;

struct block_driver {
    uint32_t minors;             /* of each disk: 0 is the whole disk, the others are partitions */
    uint8_t *buffer;             /* where sectors are read to and written from */
    uint32_t buffer_sectors;
    /* Each returns 0 or a negative error. The sectors lie within the disk, and fit into the buffer. */
    int (*read)(struct disk *disk, uint64_t sector, uint32_t sectors);
    int (*write)(struct disk *disk, uint64_t sector, uint32_t sectors);
    int (*flush)(struct disk *disk);
};

struct disk {
    uint64_t sectors;            /* 0: there is no disk */
    int read_only;
    void *device;                /* the driver's own */
    /* Partitions, by their numbers. Those without sectors do not exist. */
    struct {
        uint64_t first, sectors;
    } partitions[PARTITIONS_MAX];
    int partitions_known;
};

/* Disk i has the minor numbers from i * minors on. */
void block_start(const struct block_driver *driver, struct disk *disks, uint32_t count);

#define BLOCK_REQUESTS \
    {BLOCK_OPEN, block_request}, {BLOCK_READ, block_request}, {BLOCK_WRITE, block_request}, \
    {BLOCK_FLUSH, block_request}
int block_request(struct message *m);

/* Of partitions.c: reads the partition table. */
void partitions_read(const struct block_driver *driver, struct disk *disk);

#endif
