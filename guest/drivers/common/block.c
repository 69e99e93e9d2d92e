/* Requests for blocks. */

#include <tern/lib.h>
#include "block.h"
#include "ports.h"

static const struct block_driver *driver;
static struct disk *disks;
static uint32_t disk_count;

void block_start(const struct block_driver *its_driver, struct disk *its_disks, uint32_t count)
{
    driver = its_driver;
    disks = its_disks;
    disk_count = count;
}

/* Finds the disk and partition of a minor number: its first sector and how many it has. */
static struct disk *find(uint32_t minor, int again, uint64_t *first, uint64_t *sectors)
{
    uint32_t number = minor % driver->minors;
    if (minor / driver->minors >= disk_count)
        return NULL;
    struct disk *disk = &disks[minor / driver->minors];
    *first = 0;
    *sectors = disk->sectors;
    if (!disk->sectors || number >= PARTITIONS_MAX)
        return NULL;
    if (number == 0)
        return disk;
    if (again || !disk->partitions_known)
        partitions_read(driver, disk);
    *first = disk->partitions[number].first;
    *sectors = disk->partitions[number].sectors;
    return *sectors ? disk : NULL;
}

static int open(struct message *m)
{
    uint64_t first, sectors;
    if (!find(m->w[1], 1, &first, &sectors))
        return -ENODEV;
    m->w[1] = (uint32_t)sectors;
    m->w[2] = (uint32_t)(sectors >> 32);
    return 0;
}

static int transfer_part(struct disk *disk, const struct message *m, uint64_t sector, uint32_t done,
                         uint32_t bytes)
{
    int error;
    if (m->type == BLOCK_WRITE) {
        error = granted_copy(m->source, m->w[4], done, driver->buffer, bytes, GRANT_READ);
        return error ? error : driver->write(disk, sector, bytes / SECTOR_BYTES);
    }
    error = driver->read(disk, sector, bytes / SECTOR_BYTES);
    return error ? error : granted_copy(m->source, m->w[4], done, driver->buffer, bytes, GRANT_WRITE);
}

static int transfer(struct message *m)
{
    uint64_t first, sectors, sector = (uint64_t)m->w[3] << 32 | m->w[2];
    uint32_t bytes = m->w[5], done = 0;
    struct disk *disk = find(m->w[1], 0, &first, &sectors);
    if (!disk)
        return -ENODEV;
    if (bytes % SECTOR_BYTES || bytes > 0x7fffffff || sector > sectors)
        return -EINVAL;
    if (m->type == BLOCK_WRITE && disk->read_only)
        return -EROFS;
    /* Reads and writes across the end are short. */
    if (bytes / SECTOR_BYTES > sectors - sector)
        bytes = (uint32_t)(sectors - sector) * SECTOR_BYTES;
    while (done < bytes) {
        uint32_t part = bytes - done, most = driver->buffer_sectors * SECTOR_BYTES;
        if (part > most)
            part = most;
        int error = transfer_part(disk, m, first + sector + done / SECTOR_BYTES, done, part);
        if (error)
            return error;
        done += part;
    }
    m->w[1] = done;
    return 0;
}

/* The number in w[0] stays where it is. */
int block_request(struct message *m)
{
    uint64_t first, sectors;
    if (m->type == BLOCK_OPEN)
        return open(m);
    if (m->type != BLOCK_FLUSH)
        return transfer(m);
    struct disk *disk = find(m->w[1], 0, &first, &sectors);
    return disk ? driver->flush(disk) : -ENODEV;
}
