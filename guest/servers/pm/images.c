/* Images: stopped processes with the memory that a program begins with. What executes it shares that memory until
   it writes, so that a program which is executed often is read once, and its code is in memory once. */

#include <string.h>
#include "pm.h"

#define IMAGES 8
#define CHUNK 0x10000u

static struct image {
    endpoint_t process;        /* NONE: the entry is free */
    struct contents contents;
    uint32_t used;             /* the higher, the later */
} images[IMAGES] = {{.process = NONE}, {.process = NONE}, {.process = NONE}, {.process = NONE},
                    {.process = NONE}, {.process = NONE}, {.process = NONE}, {.process = NONE}};

static uint32_t uses;

int image_read(const struct process *process, const char *path, uint32_t offset, void *to, uint32_t bytes,
               struct contents *contents)
{
    struct message m = {.w = {0, 0, strlen(path), offset, (uint32_t)to, bytes}};
    int result = ask_fs(PM_FS_READ_IMAGE, process->endpoint, (uint32_t)path, &m);
    if (result < 0)
        return result;
    if (m.w[0] > bytes)
        return -EIO;
    *contents = (struct contents){m.w[1], m.w[2], m.w[3], m.w[4]};
    return m.w[0];
}

static int is_same(const struct contents *a, const struct contents *b)
{
    return a->bytes == b->bytes && a->volume == b->volume && a->number == b->number && a->changes == b->changes;
}

static void drop(struct image *image)
{
    if (image->process != NONE)
        sys_destroy(image->process, NULL);
    image->process = NONE;
}

int images_drop(void)
{
    int dropped = 0;
    for (struct image *image = images; image < images + IMAGES; image++) {
        /* The last one stays: its entry of the kernel's table is then there for the next. */
        if (image->process == NONE || image->used == uses)
            continue;
        drop(image);
        dropped = 1;
    }
    return dropped;
}

static int load_segment(const struct image *image, const struct process *process, const char *path,
                        const struct segment *segment)
{
    static uint8_t buffer[CHUNK];
    uint32_t done = 0;
    while (done < segment->file_bytes) {
        struct contents contents;
        uint32_t bytes = segment->file_bytes - done < CHUNK ? segment->file_bytes - done : CHUNK;
        int got = image_read(process, path, segment->offset + done, buffer, bytes, &contents);
        if (got <= 0 || !is_same(&contents, &image->contents))
            return got < 0 ? got : -ENOEXEC;
        int result = sys_copy(SELF, (uint32_t)buffer, image->process, segment->address + done, got);
        if (result)
            return -ENOMEM;
        done += got;
    }
    return 0;
}

static int make(struct image *image, const struct process *process, const char *path, const struct program *program)
{
    uint32_t address = program->first;
    drop(image);
    int result = sys_create("image", &image->process);
    if (result) {
        image->process = NONE;
        return result;
    }
    result = sys_map(image->process, &address, program->end - program->first, MAP_WRITE, NULL);
    for (uint32_t i = 0; i < program->segments && result == 0; i++)
        result = load_segment(image, process, path, &program->segment[i]);
    if (result)
        drop(image);
    return result;
}

/* The one that was used longest ago, or a free one. */
static struct image *oldest(void)
{
    struct image *oldest = images;
    for (struct image *image = images; image < images + IMAGES; image++) {
        if (image->process == NONE)
            return image;
        if (image->used < oldest->used)
            oldest = image;
    }
    return oldest;
}

int image_find(const struct process *process, const char *path, const struct program *program,
               const struct contents *contents, endpoint_t *found)
{
    struct image *image = images;
    int result = 0;
    while (image < images + IMAGES && (image->process == NONE || !is_same(&image->contents, contents)))
        image++;
    if (image == images + IMAGES) {
        image = oldest();
        image->contents = *contents;
        result = make(image, process, path, program);
        if ((result == -EAGAIN || result == -ENOMEM) && images_drop())
            result = make(image, process, path, program);
    }
    if (result == 0)
        image->used = ++uses;
    *found = image->process;
    return result;
}
