/* malloc: small blocks from lists of one size each, large ones from a list ordered by address. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <unistd.h>

#define UNIT 16u
#define SMALL 512u           /* larger blocks go back into the list of large ones */
#define SMALL_CLASSES (SMALL / UNIT + 1)
#define PIECE 4096u          /* from which small blocks are cut */
#define GROWTH 65536u

/* In front of each block. Its length is that of a unit, so blocks are aligned to 16. */
struct header {
    size_t bytes;            /* with the header */
    struct header *next;     /* while it is free */
    uint32_t unused[2];
};

static struct header *small[SMALL_CLASSES], *large;

/* Puts a block into the list of large ones, joined with its neighbours. */
static void give_back(struct header *block)
{
    struct header **place = &large, *before = NULL;

    while (*place && *place < block) {
        before = *place;
        place = &before->next;
    }
    block->next = *place;
    *place = block;
    if (block->next && (char *)block + block->bytes == (char *)block->next) {
        block->bytes += block->next->bytes;
        block->next = block->next->next;
    }
    if (before && (char *)before + before->bytes == (char *)block) {
        before->bytes += block->bytes;
        before->next = block->next;
    }
}

static int grow(size_t bytes)
{
    size_t more = bytes < GROWTH ? GROWTH : (bytes + 4095) & ~4095u;
    char *start = sbrk(more + UNIT);
    struct header *block;

    if (start == (char *)-1)
        return -1;
    block = (struct header *)(((uintptr_t)start + UNIT - 1) & ~(UNIT - 1));
    block->bytes = more;
    give_back(block);
    return 0;
}

static struct header *take(size_t bytes)
{
    struct header **place, *block;

    do {
        for (place = &large; (block = *place) != NULL; place = &block->next) {
            if (block->bytes < bytes)
                continue;
            if (block->bytes < bytes + 2 * UNIT) {
                *place = block->next;
                return block;
            }
            block->bytes -= bytes;
            block = (struct header *)((char *)block + block->bytes);
            block->bytes = bytes;
            return block;
        }
    } while (!grow(bytes));
    return NULL;
}

static struct header *take_small(size_t bytes)
{
    struct header **list = &small[bytes / UNIT], *block;
    size_t offset;

    if (!*list) {
        block = take(PIECE);
        if (!block)
            return NULL;
        for (offset = 0; offset + bytes <= PIECE; offset += bytes) {
            struct header *part = (struct header *)((char *)block + offset);

            part->bytes = bytes;
            part->next = *list;
            *list = part;
        }
    }
    block = *list;
    *list = block->next;
    return block;
}

void *malloc(size_t bytes)
{
    struct header *block;

    if (bytes > INT32_MAX - GROWTH) {
        errno = ENOMEM;
        return NULL;
    }
    bytes = (bytes + sizeof *block + UNIT - 1) & ~(UNIT - 1);
    if (bytes < 2 * UNIT)
        bytes = 2 * UNIT;
    block = bytes <= SMALL ? take_small(bytes) : take(bytes);
    if (!block) {
        errno = ENOMEM;
        return NULL;
    }
    return block + 1;
}

void free(void *memory)
{
    struct header *block = (struct header *)memory - 1;

    if (!memory)
        return;
    if (block->bytes <= SMALL) {
        block->next = small[block->bytes / UNIT];
        small[block->bytes / UNIT] = block;
    } else {
        give_back(block);
    }
}

void *calloc(size_t count, size_t bytes)
{
    void *memory;

    if (bytes && count > SIZE_MAX / bytes) {
        errno = ENOMEM;
        return NULL;
    }
    memory = malloc(count * bytes);
    if (memory)
        memset(memory, 0, count * bytes);
    return memory;
}

void *realloc(void *memory, size_t bytes)
{
    struct header *block = (struct header *)memory - 1;
    size_t room;
    void *copy;

    if (!memory)
        return malloc(bytes);
    room = block->bytes - sizeof *block;
    if (bytes <= room && bytes >= room / 4)
        return memory;
    copy = malloc(bytes);
    if (copy) {
        memcpy(copy, memory, bytes < room ? bytes : room);
        free(memory);
    }
    return copy;
}
