/* What the file systems need from outside, given by the host: the disk is memory, read from a file. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "host.h"

uint8_t *disk;
uint32_t disk_sectors, disk_writes, disk_reads, writes_until_cut = 0xffffffff;
int quiet;
static uint32_t clock_seconds = 1700000000;

void *page_allocate(void)
{
    return calloc(1, PAGE);
}

void page_release(void *page)
{
    free(page);
}

uint32_t now(void)
{
    return clock_seconds++;
}

void report(const char *what, uint32_t device)
{
    if (!quiet)
        printf("device %x: %s\n", device, what);
}

static int check(uint32_t sector, uint32_t bytes)
{
    if (bytes == 0 || bytes % 512 || bytes > TRANSFER_BYTES)
        fail("a transfer of %u bytes", bytes);
    return sector > disk_sectors || bytes / 512 > disk_sectors - sector ? -EIO : 0;
}

int device_read(uint32_t device, uint32_t sector, void *to, uint32_t bytes)
{
    (void)device;
    disk_reads++;
    if (check(sector, bytes))
        return -EIO;
    memcpy(to, disk + (size_t)sector * 512, bytes);
    return 0;
}

/* From the cut on nothing reaches the disk; the write that is under way gets as far as half of it. */
int device_write(uint32_t device, uint32_t sector, const void *from, uint32_t bytes)
{
    (void)device;
    disk_writes++;
    if (check(sector, bytes))
        return -EIO;
    if (disk_writes == writes_until_cut)
        bytes = bytes / 1024 * 512;
    else if (disk_writes > writes_until_cut)
        return 0;
    memcpy(disk + (size_t)sector * 512, from, bytes);
    return 0;
}

int device_flush(uint32_t device)
{
    (void)device;
    return 0;
}

void disk_load(const char *name)
{
    FILE *file = fopen(name, "rb");
    if (!file)
        fail("cannot open %s", name);
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    disk = malloc(bytes);
    if (fread(disk, 1, bytes, file) != (size_t)bytes)
        fail("cannot read %s", name);
    disk_sectors = bytes / 512;
    fclose(file);
}

void disk_save(const char *name)
{
    FILE *file = fopen(name, "wb");
    if (!file || fwrite(disk, 512, disk_sectors, file) != disk_sectors || fclose(file))
        fail("cannot write %s", name);
}

static uint64_t random_state;

void random_seed(uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
}

uint32_t random_below(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 16) % limit;
}
