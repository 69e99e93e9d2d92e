/* Blocks of disks, kept in memory. */

#include <string.h>
#include <tern/errno.h>
#include "cache.h"
#include "outside.h"

#define BUFFERS 2048
#define CACHE_BYTES (4u << 20)
#define HASHES 512

static struct buffer buffers[BUFFERS];
static struct buffer *hashes[HASHES];
static struct buffer *newest, *oldest;     /* of those in use */
static struct buffer *unused;              /* by hash_next */
static uint32_t fresh;                     /* buffers that were never used */
static uint32_t bytes_used, changed_count;
static uint8_t transfer[TRANSFER_BYTES];

static struct buffer **hash_of(uint32_t device, uint32_t block)
{
    return &hashes[(block ^ device * 31) % HASHES];
}

static void unchain(struct buffer *b)
{
    if (b->newer)
        b->newer->older = b->older;
    else
        newest = b->older;
    if (b->older)
        b->older->newer = b->newer;
    else
        oldest = b->newer;
}

static void make_newest(struct buffer *b)
{
    b->newer = NULL;
    b->older = newest;
    if (newest)
        newest->newer = b;
    else
        oldest = b;
    newest = b;
}

static struct buffer *look_up(uint32_t device, uint32_t block, uint32_t bytes)
{
    struct buffer *b = *hash_of(device, block);
    while (b && (b->device != device || b->block != block || b->bytes != bytes))
        b = b->hash_next;
    return b;
}

int cache_has(uint32_t device, uint32_t block, uint32_t bytes)
{
    return look_up(device, block, bytes) != NULL;
}

static void drop(struct buffer *b)
{
    struct buffer **at = hash_of(b->device, b->block);
    while (*at != b)
        at = &(*at)->hash_next;
    *at = b->hash_next;
    unchain(b);
    changed_count -= b->changed;
    bytes_used -= b->bytes;
    release(b->data, b->bytes);
    b->data = NULL;
    b->hash_next = unused;
    unused = b;
}

/* Frees the oldest buffer that can be freed. Changed ones must be written first, and then all of them, so
   that the order is kept; those that the disk does not take are lost. */
static int drop_oldest(void)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        for (struct buffer *b = oldest; b; b = b->newer)
            if (!b->pins && !b->changed) {
                drop(b);
                return 0;
            }
        cache_flush(ALL_DEVICES);
    }
    return -ENOMEM;
}

static int make(uint32_t device, uint32_t block, uint32_t bytes, struct buffer **made)
{
    uint8_t *data = NULL;
    while (!data) {
        if (bytes_used + bytes <= CACHE_BYTES && (unused || fresh < BUFFERS))
            data = allocate(bytes);
        if (!data && drop_oldest())
            return -ENOMEM;
    }
    struct buffer *b = unused;
    if (b)
        unused = b->hash_next;
    else
        b = &buffers[fresh++];
    *b = (struct buffer){.data = data, .device = device, .block = block, .bytes = bytes};
    struct buffer **hash = hash_of(device, block);
    b->hash_next = *hash;
    *hash = b;
    make_newest(b);
    bytes_used += bytes;
    *made = b;
    return 0;
}

static int get(uint32_t device, uint32_t block, uint32_t bytes, int read, struct buffer **found)
{
    struct buffer *b = look_up(device, block, bytes);
    if (b) {
        unchain(b);
        make_newest(b);
        if (!read)
            memset(b->data, 0, bytes);
    } else {
        int result = make(device, block, bytes, &b);
        if (result == 0 && read) {
            result = device_read(device, block * (bytes / 512), b->data, bytes);
            if (result)
                drop(b);
        }
        if (result)
            return result;
    }
    b->pins++;
    *found = b;
    return 0;
}

int cache_read(uint32_t device, uint32_t block, uint32_t bytes, struct buffer **buffer)
{
    return get(device, block, bytes, 1, buffer);
}

int cache_new(uint32_t device, uint32_t block, uint32_t bytes, struct buffer **buffer)
{
    return get(device, block, bytes, 0, buffer);
}

void cache_release(struct buffer *buffer)
{
    buffer->pins--;
}

void cache_changed(struct buffer *buffer, enum block_kind kind)
{
    buffer->kind = kind;
    if (!buffer->changed)
        changed_count++;
    buffer->changed = 1;
}

void cache_read_ahead(uint32_t device, uint32_t block, uint32_t bytes, uint32_t count)
{
    if (count > TRANSFER_BYTES / bytes)
        count = TRANSFER_BYTES / bytes;
    if (count < 2 || device_read(device, block * (bytes / 512), transfer, count * bytes))
        return;
    for (uint32_t i = 0; i < count; i++) {
        struct buffer *b;
        if (look_up(device, block + i, bytes))
            continue;
        /* Making room must not write, because writing uses `transfer` too. */
        if (bytes_used + bytes > CACHE_BYTES || (!unused && fresh == BUFFERS)) {
            for (b = oldest; b && (b->pins || b->changed);)
                b = b->newer;
            if (!b)
                return;
            drop(b);
        }
        if (make(device, block + i, bytes, &b))
            return;
        memcpy(b->data, transfer + i * bytes, bytes);
    }
}

/* Sorts by device and block (Shell's way). */
static void sort(struct buffer **list, uint32_t count)
{
    for (uint32_t gap = count / 2; gap; gap /= 2)
        for (uint32_t i = gap; i < count; i++) {
            struct buffer *b = list[i];
            uint32_t at = i;
            while (at >= gap && (list[at - gap]->device > b->device ||
                                 (list[at - gap]->device == b->device && list[at - gap]->block > b->block))) {
                list[at] = list[at - gap];
                at -= gap;
            }
            list[at] = b;
        }
}

/* Writes as many of the buffers as are neighbours on the disk, and returns how many they are. */
static uint32_t write_run(struct buffer **list, uint32_t count, int *error)
{
    struct buffer *first = list[0];
    uint32_t run = 0;
    while (run < count && (run + 1) * first->bytes <= TRANSFER_BYTES && list[run]->device == first->device &&
           list[run]->block == first->block + run && list[run]->bytes == first->bytes) {
        memcpy(transfer + run * first->bytes, list[run]->data, first->bytes);
        run++;
    }
    int result =
        device_write(first->device, first->block * (first->bytes / 512), transfer, run * first->bytes);
    if (result && !*error) {
        *error = result;
        report("a block could not be written", first->device);
    }
    for (uint32_t i = 0; i < run; i++)
        list[i]->changed = 0;
    changed_count -= run;
    return run;
}

int cache_flush(uint32_t device)
{
    static struct buffer *list[BUFFERS];
    int error = 0;
    for (int kind = 0; kind < BLOCK_KINDS && changed_count; kind++) {
        uint32_t count = 0;
        for (struct buffer *b = newest; b; b = b->older)
            if (b->changed && b->kind == kind && (device == ALL_DEVICES || b->device == device))
                list[count++] = b;
        sort(list, count);
        for (uint32_t at = 0; at < count;)
            at += write_run(list + at, count - at, &error);
    }
    return error;
}

void cache_forget(uint32_t device)
{
    struct buffer *b = newest;
    while (b) {
        struct buffer *older = b->older;
        if (b->device == device && !b->pins)
            drop(b);
        b = older;
    }
}

int cache_waiting(void)
{
    return changed_count != 0;
}
