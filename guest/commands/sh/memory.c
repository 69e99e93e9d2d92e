/* Memory in blocks that are freed from the last one backwards. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sh.h"

#define BLOCK 8192

struct block {
    struct block *before;
    size_t used, size;
    char memory[];
};

static struct block *last;

void *allocate(size_t bytes)
{
    bytes = (bytes + 7) & ~(size_t)7;
    if (!last || last->size - last->used < bytes) {
        size_t size = bytes > BLOCK ? bytes : BLOCK;
        struct block *block = malloc(sizeof *block + size);
        if (!block) {
            fprintf(stderr, "sh: out of memory\n");
            exit(2);
        }
        block->before = last;
        block->used = 0;
        block->size = size;
        last = block;
    }
    void *memory = last->memory + last->used;
    last->used += bytes;
    memset(memory, 0, bytes);
    return memory;
}

char *copy_text(const char *text, size_t bytes)
{
    char *copy = allocate(bytes + 1);
    memcpy(copy, text, bytes);
    return copy;
}

struct mark memory_mark(void)
{
    return (struct mark){last, last ? last->used : 0};
}

void memory_release(struct mark mark)
{
    while (last != mark.block) {
        struct block *before = last->before;
        free(last);
        last = before;
    }
    if (last)
        last->used = mark.used;
}

void put(struct buffer *buffer, char c)
{
    if (buffer->used == buffer->size) {
        size_t size = buffer->size ? 2 * buffer->size : 64;
        char *text = allocate(size);
        if (buffer->used)
            memcpy(text, buffer->text, buffer->used);
        buffer->text = text;
        buffer->size = size;
    }
    buffer->text[buffer->used++] = c;
}

void put_text(struct buffer *buffer, const char *text)
{
    while (*text)
        put(buffer, *text++);
}

char *buffer_text(struct buffer *buffer)
{
    put(buffer, 0);
    buffer->used--;
    return buffer->text;
}
