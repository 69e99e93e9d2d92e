/* Tests of the file systems on the host:

   model IMAGE SEED OPERATIONS FOLDER   random operations in ext2 and in memory, which must agree; the image
                                        is written back, and files go to FOLDER for a comparison with
                                        debugfs's
   cut IMAGE SEED OPERATIONS WRITES     random operations, of which only the first writes reach the disk
   fill IMAGE                           writes until the disk is full, then removes everything
   hostile IMAGE SEED ROUNDS            flips bytes, then mounts and uses what is left */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "host.h"

#define DEVICE 0x301

static struct volume *mount_disk(int *result)
{
    struct volume *volume = volume_free();
    *result = ext2_open(volume, DEVICE, disk_sectors, 0);
    return volume;
}

/* As umount does it, for a volume that is not mounted on a directory. */
static int unmount(struct volume *volume)
{
    if (nodes_used(volume) != 1)
        fail("%u references are left", nodes_used(volume));
    nodes_store(volume);
    volume->root->changed = 0;
    int result = volume->type->close(volume);
    node_put(volume->root);
    memset(volume, 0, sizeof *volume);
    return result;
}

static struct volume *must_mount(void)
{
    int result;
    struct volume *volume = mount_disk(&result);
    if (result)
        fail("mounting: %d", result);
    return volume;
}

static void write_out(struct node *directory, const char *folder, uint32_t *count)
{
    static uint8_t data[65536];
    union entry_space space;
    uint32_t position = 0;
    while (directory->volume->type->list(directory, &position, &space.entry) == 1) {
        struct directory_entry *entry = &space.entry;
        struct node *node;
        char path[4096];
        if (entry->name[0] == '.' || node_get(directory->volume, entry->inode, &node))
            continue;
        snprintf(path, sizeof path, "%s/%.*s", folder, entry->length, entry->name);
        if (IS_DIRECTORY(node)) {
            char command[8192];
            snprintf(command, sizeof command, "mkdir -p '%s'", path);
            if (system(command))
                fail("mkdir");
            write_out(node, path, count);
        } else if (IS_FILE(node)) {
            FILE *file = fopen(path, "wb");
            if (!file)
                fail("cannot write %s", path);
            for (uint32_t at = 0; at < node->size; at += sizeof data)
                fwrite(data, 1, read_node(node, at, data, sizeof data), file);
            fclose(file);
            ++*count;
        }
        node_put(node);
    }
}

static void model(const char *image, uint32_t operations, const char *folder)
{
    struct node *roots[2];
    uint32_t files = 0;
    struct volume *memory = volume_free();
    if (memory_open(memory, 0, 65536))
        fail("no memory");
    roots[0] = memory->root;
    for (uint32_t part = 0; part < 4; part++) {
        struct volume *volume = must_mount();
        roots[1] = volume->root;
        operations_start(roots, 2, 9000000);
        for (uint32_t i = 0; i < operations / 4; i++)
            operations_step();
        compare_trees(roots, 0);
        operations_end();
        int result = unmount(volume);
        if (result)
            fail("unmounting: %d", result);
    }
    disk_save(image);
    write_out(memory->root, folder, &files);
    printf("%s: %u operations, %u files left, %u reads, %u writes of the disk\n", image, operations, files,
           disk_reads, disk_writes);
}

static void cut(const char *image, uint32_t operations, uint32_t writes)
{
    struct volume *volume = must_mount();
    writes_until_cut = disk_writes + writes;
    operations_start(&volume->root, 1, 9000000);
    for (uint32_t i = 0; i < operations && disk_writes < writes_until_cut; i++) {
        operations_step();
        if (random_below(30) == 0)
            volumes_sync();
    }
    disk_save(image);
}

static void fill(const char *image)
{
    static uint8_t data[65536];
    struct volume *volume = must_mount();
    struct statfs before, full, after;
    volume->type->statistics(volume, &before);
    int result = 0;
    uint32_t count = 0;
    while (result >= 0) {
        struct last_name name = {.length = 0};
        struct node *node;
        name.length = sprintf(name.name, "%u", count);
        result = make_node(volume->root, &name, S_IFREG | 0600, 0, &node);
        if (result)
            break;
        count++;
        for (uint32_t at = 0; at < 20; at++) {
            memset(data, count + at, sizeof data);
            result = write_node(node, at * sizeof data, data, sizeof data);
            if (result < 0)
                break;
        }
        node_put(node);
    }
    if (result != -ENOSPC)
        fail("filling: %d", result);
    volume->type->statistics(volume, &full);
    if (full.free_blocks && full.free_inodes)
        fail("%u blocks and %u inodes are free on a full disk", full.free_blocks, full.free_inodes);
    for (uint32_t i = 0; i < count; i++) {
        struct last_name name = {.length = 0};
        name.length = sprintf(name.name, "%u", i);
        if (unlink_name(volume->root, &name))
            fail("unlink %u", i);
    }
    volume->type->statistics(volume, &after);
    if (after.free_inodes != before.free_inodes || after.free_blocks + 1 < before.free_blocks)
        fail("blocks free: %u, %u, %u", before.free_blocks, full.free_blocks, after.free_blocks);
    if (unmount(volume))
        fail("unmounting");
    disk_save(image);
    printf("%s: full after %u files, then empty again\n", image, count);
}

/* Most of what matters is in the first blocks. */
static void damage(uint32_t bytes)
{
    uint32_t count = 1 + random_below(random_below(4) ? 6 : 200);
    while (count--) {
        uint32_t zone = random_below(4);
        uint32_t limit = zone == 0 ? 2048 : zone == 1 ? 16384 : zone == 2 ? bytes / 8 : bytes;
        uint32_t at = random_below(limit);
        disk[at] = random_below(2) ? disk[at] ^ 1 << random_below(8) : random_below(256);
    }
}

static void hostile(uint32_t rounds)
{
    uint32_t bytes = disk_sectors * 512, mounted = 0, errors = 0, most = 0;
    uint8_t *original = malloc(bytes);
    memcpy(original, disk, bytes);
    quiet = 1;
    for (uint32_t round = 0; round < rounds; round++) {
        int result;
        memcpy(disk, original, bytes);
        damage(bytes);
        uint32_t before = disk_reads + disk_writes;
        struct volume *volume = mount_disk(&result);
        if (result)
            continue;
        mounted++;
        operations_start(&volume->root, 1, 2000000);
        for (uint32_t i = 0; i < 150; i++)
            operations_step();
        operations_end();
        errors += volume->read_only;
        unmount(volume);
        cache_forget(DEVICE);
        if (disk_reads + disk_writes - before > most)
            most = disk_reads + disk_writes - before;
    }
    printf("%u damaged disks: %u mounted, %u of them found damaged later, at most %u transfers\n", rounds,
           mounted, errors, most);
    if (most > 20000)
        fail("too many transfers");
}

int main(int argc, char **argv)
{
    if (argc < 3)
        fail("arguments are missing");
    uint32_t numbers[6] = {0};
    for (int i = 3; i < argc && i < 6; i++)
        numbers[i] = strtoul(argv[i], NULL, 10);
    disk_load(argv[2]);
    random_seed(numbers[3]);
    if (strcmp(argv[1], "model") == 0 && argc == 6)
        model(argv[2], numbers[4], argv[5]);
    else if (strcmp(argv[1], "cut") == 0)
        cut(argv[2], numbers[4], numbers[5]);
    else if (strcmp(argv[1], "fill") == 0)
        fill(argv[2]);
    else if (strcmp(argv[1], "hostile") == 0)
        hostile(numbers[4]);
    else
        fail("no test %s", argv[1]);
    return 0;
}
