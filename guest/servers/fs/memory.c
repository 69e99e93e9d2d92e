/* A file system in memory. Contents are pages in a tree of two levels; a page that was never written may
   instead lie in the boot archive. */

#include <string.h>
#include "outside.h"
#include "vfs.h"

#define FILES 16384
#define POINTERS (PAGE / sizeof(void *))

struct memory_entry {
    struct memory_entry *next;
    uint32_t number, position;
    uint8_t type, length;
    char name[];
};

struct memory_file {
    uint32_t mode, links, size, device, user, group, accessed, modified, status_changed;
    uint32_t pages;
    const uint8_t *archive;        /* the contents from the start on, as far as no page replaces them */
    uint32_t archive_bytes;
    uint8_t ***tables;
    struct memory_entry *first, *last;
    uint32_t next_position;
};

/* By number; number 0 is none, 1 the root. There is one volume of this kind. */
static struct memory_file *files[FILES];
static uint32_t files_used, pages_used, pages_max;

static int memory_load(struct node *node)
{
    struct memory_file *file = node->number < FILES ? files[node->number] : NULL;
    if (!file)
        return -EIO;
    node->memory = file;
    node->mode = file->mode;
    node->links = file->links;
    node->size = file->size;
    node->device = file->device;
    node->user = file->user;
    node->group = file->group;
    node->accessed = file->accessed;
    node->modified = file->modified;
    node->status_changed = file->status_changed;
    node->sectors = file->pages * (PAGE / 512);
    return 0;
}

static int memory_store(struct node *node)
{
    struct memory_file *file = node->memory;
    file->mode = node->mode;
    file->links = node->links;
    file->size = node->size;
    file->device = node->device;
    file->user = node->user;
    file->group = node->group;
    file->accessed = node->accessed;
    file->modified = node->modified;
    file->status_changed = node->status_changed;
    node->changed = 0;
    return 0;
}

static int memory_make(struct node *directory, uint32_t mode, struct node **made)
{
    static uint32_t from = 1;
    for (uint32_t i = 0; i < FILES - 1; i++) {
        uint32_t number = 1 + (from - 1 + i) % (FILES - 1);
        if (files[number])
            continue;
        struct memory_file *file = allocate(sizeof *file);
        if (!file)
            return -ENOSPC;
        file->mode = mode;
        file->accessed = file->modified = file->status_changed = now();
        files[number] = file;
        int result = node_new(directory->volume, number, made);
        if (result) {
            files[number] = NULL;
            release(file, sizeof *file);
            return result;
        }
        memory_load(*made);
        files_used++;
        from = number % (FILES - 1) + 1;
        return 0;
    }
    return -ENOSPC;
}

/* The place of the pointer to a page of the file, or NULL. */
static uint8_t **page_place(struct memory_file *file, uint32_t index, int make)
{
    uint32_t high = index / POINTERS, low = index % POINTERS;
    if (high >= POINTERS)
        return NULL;
    if (!file->tables && make)
        file->tables = page_allocate();
    if (!file->tables)
        return NULL;
    if (!file->tables[high] && make)
        file->tables[high] = page_allocate();
    return file->tables[high] ? &file->tables[high][low] : NULL;
}

static void free_page(struct node *node, uint8_t **place)
{
    if (!*place)
        return;
    page_release(*place);
    *place = NULL;
    pages_used--;
    node->memory->pages--;
}

static uint32_t from_archive(const struct memory_file *file, uint32_t offset, uint8_t *to, uint32_t bytes)
{
    uint32_t there = offset < file->archive_bytes ? file->archive_bytes - offset : 0;
    if (there > bytes)
        there = bytes;
    /* A file that is not from the archive has no address there. */
    if (there)
        memcpy(to, file->archive + offset, there);
    return there;
}

static int memory_read(struct node *node, uint32_t offset, void *to, uint32_t bytes)
{
    uint8_t *at = to;
    for (uint32_t left = bytes; left;) {
        uint32_t in_page = offset % PAGE, part = PAGE - in_page;
        if (part > left)
            part = left;
        uint8_t **place = page_place(node->memory, offset / PAGE, 0);
        if (place && *place) {
            memcpy(at, *place + in_page, part);
        } else {
            uint32_t there = from_archive(node->memory, offset, at, part);
            memset(at + there, 0, part - there);
        }
        at += part;
        offset += part;
        left -= part;
    }
    return bytes;
}

/* The page to write to, which takes over what the archive has of it. */
static uint8_t *page_to_write(struct node *node, uint32_t index)
{
    struct memory_file *file = node->memory;
    uint8_t **place = page_place(file, index, 1);
    if (!place)
        return NULL;
    if (!*place) {
        if (pages_used >= pages_max || !(*place = page_allocate()))
            return NULL;
        pages_used++;
        file->pages++;
        from_archive(file, index * PAGE, *place, PAGE);
    }
    return *place;
}

static int memory_write(struct node *node, uint32_t offset, const void *from, uint32_t bytes)
{
    const uint8_t *at = from;
    uint32_t left = bytes;
    while (left) {
        uint32_t in_page = offset % PAGE, part = PAGE - in_page;
        if (part > left)
            part = left;
        uint8_t *page = page_to_write(node, offset / PAGE);
        if (!page)
            break;
        memcpy(page + in_page, at, part);
        at += part;
        offset += part;
        left -= part;
        if (offset > node->size)
            node->size = offset;
    }
    node->sectors = node->memory->pages * (PAGE / 512);
    node_touch(node);
    return left < bytes || bytes == 0 ? (int)(bytes - left) : -ENOSPC;
}

static int memory_truncate(struct node *node, uint32_t bytes)
{
    struct memory_file *file = node->memory;
    uint32_t keep = (bytes + PAGE - 1) / PAGE, end = (node->size + PAGE - 1) / PAGE;
    if (bytes < node->size) {
        if (file->archive_bytes > bytes)
            file->archive_bytes = bytes;
        uint8_t **place = page_place(file, bytes / PAGE, 0);
        if (bytes % PAGE && place && *place)
            memset(*place + bytes % PAGE, 0, PAGE - bytes % PAGE);
        for (uint32_t index = keep; index < end && file->tables; index++) {
            if (!file->tables[index / POINTERS]) {
                index |= POINTERS - 1;
                continue;
            }
            free_page(node, page_place(file, index, 0));
        }
        for (uint32_t high = (keep + POINTERS - 1) / POINTERS; high < POINTERS && file->tables; high++)
            if (file->tables[high]) {
                page_release(file->tables[high]);
                file->tables[high] = NULL;
            }
    }
    node->size = bytes;
    node->sectors = file->pages * (PAGE / 512);
    node_touch(node);
    return 0;
}

static int memory_discard(struct node *node)
{
    struct memory_file *file = node->memory;
    memory_truncate(node, 0);
    if (file->tables)
        page_release(file->tables);
    while (file->first) {
        struct memory_entry *entry = file->first;
        file->first = entry->next;
        release(entry, sizeof *entry + entry->length);
    }
    files[node->number] = NULL;
    files_used--;
    release(file, sizeof *file);
    return 0;
}

static struct memory_entry *entry_find(struct node *directory, const char *name, uint32_t length)
{
    struct memory_entry *entry = directory->memory->first;
    while (entry && (entry->length != length || memcmp(entry->name, name, length)))
        entry = entry->next;
    return entry;
}

static int memory_find(struct node *directory, const char *name, uint32_t length, uint32_t *number)
{
    struct memory_entry *entry = entry_find(directory, name, length);
    if (!entry)
        return -ENOENT;
    *number = entry->number;
    return 0;
}

static int memory_enter(struct node *directory, const char *name, uint32_t length, struct node *node)
{
    struct memory_file *file = directory->memory;
    struct memory_entry *entry = allocate(sizeof *entry + length);
    if (!entry)
        return -ENOSPC;
    entry->number = node->number;
    entry->position = file->next_position++;
    entry->type = entry_type(node->mode);
    entry->length = length;
    memcpy(entry->name, name, length);
    if (file->last)
        file->last->next = entry;
    else
        file->first = entry;
    file->last = entry;
    node_touch(directory);
    return 0;
}

static int memory_change(struct node *directory, const char *name, uint32_t length, struct node *node)
{
    struct memory_entry *entry = entry_find(directory, name, length);
    if (!entry)
        return -ENOENT;
    entry->number = node->number;
    entry->type = entry_type(node->mode);
    node_touch(directory);
    return 0;
}

static int memory_remove(struct node *directory, const char *name, uint32_t length)
{
    struct memory_file *file = directory->memory;
    struct memory_entry *before = NULL, *entry = file->first;
    while (entry && (entry->length != length || memcmp(entry->name, name, length))) {
        before = entry;
        entry = entry->next;
    }
    if (!entry)
        return -ENOENT;
    if (before)
        before->next = entry->next;
    else
        file->first = entry->next;
    if (file->last == entry)
        file->last = before;
    release(entry, sizeof *entry + entry->length);
    node_touch(directory);
    return 0;
}

static int memory_list(struct node *directory, uint32_t *position, struct directory_entry *to)
{
    struct memory_entry *entry = directory->memory->first;
    while (entry && entry->position < *position)
        entry = entry->next;
    if (!entry)
        return 0;
    to->inode = entry->number;
    to->type = entry->type;
    to->length = entry->length;
    memcpy(to->name, entry->name, entry->length);
    *position = entry->position + 1;
    return 1;
}

static int memory_set_link(struct node *node, const char *contents, uint32_t length)
{
    int written = memory_write(node, 0, contents, length);
    return written == (int)length ? 0 : -ENOSPC;
}

static int memory_get_link(struct node *node, char *to, uint32_t bytes)
{
    return memory_read(node, 0, to, node->size < bytes ? node->size : bytes);
}

static void memory_statistics(struct volume *volume, struct statfs *to)
{
    (void)volume;
    to->block_bytes = PAGE;
    to->blocks = pages_max;
    to->free_blocks = pages_max - pages_used;
    to->inodes = FILES - 1;
    to->free_inodes = FILES - 1 - files_used;
}

static int memory_sync(struct volume *volume)
{
    (void)volume;
    return 0;
}

static int memory_close(struct volume *volume)
{
    (void)volume;
    return -EBUSY;
}

void memory_set_contents(struct node *node, const uint8_t *contents, uint32_t bytes)
{
    node->memory->archive = contents;
    node->memory->archive_bytes = bytes;
    node->size = bytes;
    node->changed = 1;
}

const struct volume_type memory_type = {
    "memory", memory_load, memory_store, memory_discard, memory_make, memory_find, memory_enter,
    memory_change, memory_remove, memory_list, memory_read, memory_write, memory_truncate, memory_set_link,
    memory_get_link, memory_statistics, memory_sync, memory_close,
};

int memory_open(struct volume *volume, uint32_t device, uint32_t limit)
{
    struct node parent = {.volume = volume}, *root;
    volume->type = &memory_type;
    volume->device = device;
    pages_max = limit;
    int result = memory_make(&parent, S_IFDIR | 0755, &root);
    if (result)
        return result;
    memory_enter(root, ".", 1, root);
    memory_enter(root, "..", 2, root);
    root->links = 2;
    memory_store(root);
    volume->root = root;
    return 0;
}
