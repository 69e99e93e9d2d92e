/*
 * Disks and the screen.
 *
 * A disk is a block device or a file of 16 MiB in which each 32-bit word is its own number. It is read and
 * written past the system's cache where that can be had; nothing is written that is not there already.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "suite.h"

/* Tern has no cache for disks that are opened as devices. */
#ifndef O_DIRECT
#define O_DIRECT 0
#endif
/* And it has no terminals that processes belong to. */
#ifndef O_NOCTTY
#define O_NOCTTY 0
#endif

#define DISK_BYTES (16u << 20)
#define SMALL 4096u
#define LARGE 65536u

static uint32_t buffer[LARGE / sizeof(uint32_t)] __attribute__((aligned(4096)));

static int open_disk(const char *path)
{
    int disk = open(path, O_RDWR | O_DIRECT);
    if (disk < 0 && errno == EINVAL)
        disk = open(path, O_RDWR);
    if (disk < 0)
        fail(path);
    return disk;
}

/* Reads a block, and gives a checksum of its ends. */
static uint32_t read_block(int disk, uint32_t at, uint32_t bytes)
{
    if (pread(disk, buffer, bytes, at) != (ssize_t)bytes)
        fail("pread");
    return mix(buffer[0], buffer[bytes / sizeof buffer[0] - 1]);
}

static void write_block(int disk, uint32_t at, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes / sizeof buffer[0]; i++)
        buffer[i] = at / sizeof buffer[0] + i;
    if (pwrite(disk, buffer, bytes, at) != (ssize_t)bytes)
        fail("pwrite");
}

/* Where block number I is: in a row, or anywhere. */
static uint32_t sequential(uint32_t i)
{
    return i * LARGE % DISK_BYTES;
}

static uint32_t scattered(uint32_t i)
{
    uint32_t x = next_random(next_random(i * 2654435761u));
    return x % (DISK_BYTES / SMALL) * SMALL;
}

static uint32_t read_blocks(const char *path, uint32_t count, uint32_t bytes, uint32_t (*place)(uint32_t))
{
    int disk = open_disk(path);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum = mix(sum, read_block(disk, place(i), bytes));
    close(disk);
    return sum;
}

/* The last block that was written is read as well. */
static uint32_t write_blocks(const char *path, uint32_t count, uint32_t bytes, uint32_t (*place)(uint32_t))
{
    int disk = open_disk(path);
    for (uint32_t i = 0; i < count; i++)
        write_block(disk, place(i), bytes);
    memset(buffer, 0, sizeof buffer);
    uint32_t sum = count == 0 ? 0 : read_block(disk, place(count - 1), bytes);
    close(disk);
    return sum;
}

uint32_t io_disk_read_random(uint32_t count, const char *path)
{
    return read_blocks(path, count, SMALL, scattered);
}

uint32_t io_disk_read_sequential(uint32_t count, const char *path)
{
    return read_blocks(path, count, LARGE, sequential);
}

uint32_t io_disk_write_random(uint32_t count, const char *path)
{
    return write_blocks(path, count, SMALL, scattered);
}

uint32_t io_disk_write_sequential(uint32_t count, const char *path)
{
    return write_blocks(path, count, LARGE, sequential);
}

#define LINE "the quick brown fox jumps over the lazy dog"

int line_text(char text[LINE_BYTES], uint32_t i)
{
    return snprintf(text, LINE_BYTES, "%10u %s", i, LINE);
}

/*
 * Writes lines to a console, whose screen scrolls, and looks whether the last of them are there where the
 * system shows the memory of its screen: the checksum is their number.
 */
uint32_t io_display(uint32_t count, const char *path)
{
    int console = open(path, O_WRONLY | O_NOCTTY);
    if (console < 0)
        fail(path);
    char text[LINE_BYTES + 1];
    for (uint32_t i = 0; i < count; i++) {
        int length = line_text(text, i);
        text[length] = '\n';
        if (write(console, text, length + 1) != length + 1)
            fail("write");
    }
    close(console);
    look_at_screen(path, count);
    return count;
}
