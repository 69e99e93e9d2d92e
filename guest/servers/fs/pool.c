/* Blocks of memory smaller than a page: each size, a power of two, has a list of free ones. */

#include <string.h>
#include "outside.h"

#define SMALLEST 32u
#define SIZES 7

struct free_block {
    struct free_block *next;
};

static struct free_block *lists[SIZES];

static uint32_t size_of(uint32_t bytes, uint32_t *rounded)
{
    uint32_t index = 0;
    *rounded = SMALLEST;
    while (*rounded < bytes) {
        *rounded *= 2;
        index++;
    }
    return index;
}

void *allocate(uint32_t bytes)
{
    uint32_t size;
    if (bytes > PAGE)
        return NULL;
    uint32_t index = size_of(bytes, &size);
    if (index == SIZES)
        return page_allocate();
    if (!lists[index]) {
        uint8_t *page = page_allocate();
        if (!page)
            return NULL;
        for (uint32_t at = 0; at < PAGE; at += size) {
            struct free_block *block = (struct free_block *)(page + at);
            block->next = lists[index];
            lists[index] = block;
        }
    }
    struct free_block *block = lists[index];
    lists[index] = block->next;
    memset(block, 0, size);
    return block;
}

void release(void *pointer, uint32_t bytes)
{
    uint32_t size;
    uint32_t index = size_of(bytes, &size);
    if (!pointer)
        return;
    if (index == SIZES) {
        page_release(pointer);
        return;
    }
    struct free_block *block = pointer;
    block->next = lists[index];
    lists[index] = block;
}
