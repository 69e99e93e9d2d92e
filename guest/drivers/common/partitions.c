/* Partition tables of PCs: four entries in the first sector, of which some may be extended partitions, a
   chain of sectors with such tables, each with one logical partition. */

#include <string.h>
#include "block.h"

#define TABLE 446
#define ENTRY_BYTES 16
#define SIGNATURE 510
#define FIRST_LOGICAL 5

static uint32_t little(const uint8_t *bytes)
{
    return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static int is_extended(uint8_t type)
{
    return type == 0x05 || type == 0x0f || type == 0x85;
}

static int read_table(const struct block_driver *driver, struct disk *disk, uint64_t sector, uint8_t *table)
{
    if (sector >= disk->sectors || driver->read(disk, sector, 1))
        return 0;
    memcpy(table, driver->buffer + TABLE, SECTOR_BYTES - TABLE);
    return table[SIGNATURE - TABLE] == 0x55 && table[SIGNATURE - TABLE + 1] == 0xaa;
}

/* Adds a partition if it lies within the disk. */
static void add(struct disk *disk, uint32_t number, uint64_t first, uint64_t sectors)
{
    if (number >= PARTITIONS_MAX || first >= disk->sectors || sectors > disk->sectors - first)
        return;
    disk->partitions[number].first = first;
    disk->partitions[number].sectors = sectors;
}

/* Follows the chain of an extended partition; it has an end even if the disk's contents are a circle. */
static void read_chain(const struct block_driver *driver, struct disk *disk, uint64_t start)
{
    uint8_t table[SECTOR_BYTES - TABLE];
    uint64_t at = start;
    for (uint32_t number = FIRST_LOGICAL; number < PARTITIONS_MAX; number++) {
        if (!read_table(driver, disk, at, table))
            return;
        const uint8_t *next = table + ENTRY_BYTES;
        if (table[4])
            add(disk, number, at + little(table + 8), little(table + 12));
        if (!is_extended(next[4]))
            return;
        at = start + little(next + 8);
    }
}

void partitions_read(const struct block_driver *driver, struct disk *disk)
{
    uint8_t table[SECTOR_BYTES - TABLE];
    memset(disk->partitions, 0, sizeof disk->partitions);
    disk->partitions_known = 1;
    if (!read_table(driver, disk, 0, table))
        return;
    uint64_t chain = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint8_t *entry = table + i * ENTRY_BYTES;
        if (!entry[4])
            continue;
        add(disk, i + 1, little(entry + 8), little(entry + 12));
        if (is_extended(entry[4]) && !chain)
            chain = little(entry + 8);
    }
    if (chain)
        read_chain(driver, disk, chain);
}
