/* Random operations, done in one volume or in several that must agree. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "host.h"

#define VOLUMES_MAX 2
#define HELD 4
#define CHUNK 70000u

static struct node *roots[VOLUMES_MAX];
static uint32_t root_count, bytes_limit, bytes_written;
static struct node *held[HELD][VOLUMES_MAX]; /* open files, which may lose their names meanwhile */

static void same(const char *what, const char *path, const int *results)
{
    if (root_count == 2 && results[0] != results[1])
        fail("%s %s: %d and %d", what, path, results[0], results[1]);
}

/* Names are few, so that they often meet; some are long. */
static void random_name(char *to)
{
    uint32_t which = random_below(20);
    if (which < 12)
        sprintf(to, "%c", 'a' + which);
    else
        sprintf(to, "%0*u", (int)(1 + random_below(4) * 60), random_below(40));
}

static void random_path(char *to)
{
    uint32_t depth = 1 + random_below(4);
    *to = 0;
    for (uint32_t i = 0; i < depth; i++) {
        strcat(to, "/");
        /* Directories have few names, so that paths often exist. */
        if (i + 1 < depth)
            sprintf(to + strlen(to), "%c", 'a' + random_below(4));
        else
            random_name(to + strlen(to));
    }
    if (random_below(50) == 0)
        strcat(to, random_below(2) ? "/" : "/..");
}

static int walk(uint32_t volume, const char *path, int how, struct node **node, struct last_name *last)
{
    return path_walk(roots[volume], roots[volume], path, strlen(path), how, node, last);
}

static void random_bytes(uint8_t *to, uint32_t bytes)
{
    uint32_t value = random_below(0x7fffffff);
    for (uint32_t i = 0; i < bytes; i++, value = value * 1103515245 + 12345)
        to[i] = value >> 16;
}

static void write_and_read(struct node *const *nodes, const char *path)
{
    static uint8_t data[CHUNK], back[VOLUMES_MAX][CHUNK];
    uint32_t bytes = random_below(random_below(4) ? 3000 : CHUNK);
    uint32_t offset = random_below(random_below(3) ? 20000 : 600000);
    int results[VOLUMES_MAX] = {0};
    if (random_below(40) == 0)
        offset = random_below(120000000);
    random_bytes(data, bytes);
    int is_write = random_below(3) && bytes_written < bytes_limit;
    for (uint32_t v = 0; v < root_count; v++) {
        if (!IS_FILE(nodes[v]))
            return;
        results[v] = is_write ? write_node(nodes[v], offset, data, bytes) :
                                read_node(nodes[v], offset, back[v], bytes);
    }
    same(is_write ? "write" : "read", path, results);
    if (is_write && results[0] > 0)
        bytes_written += results[0];
    if (!is_write && root_count == 2 && results[0] > 0 && memcmp(back[0], back[1], results[0]))
        fail("%s: contents at %u differ", path, offset);
}

static void change_file(const char *path)
{
    struct node *nodes[VOLUMES_MAX];
    int results[VOLUMES_MAX] = {0};
    uint32_t size = random_below(3) ? random_below(30000) : random_below(700000), what = random_below(8);
    for (uint32_t v = 0; v < root_count; v++)
        results[v] = walk(v, path, WALK_FOLLOW, &nodes[v], NULL);
    same("walk", path, results);
    if (results[0])
        return;
    if (what < 6) {
        write_and_read(nodes, path);
    } else {
        for (uint32_t v = 0; v < root_count; v++)
            results[v] = change_size(nodes[v], size);
        same("truncate", path, results);
    }
    uint32_t slot = random_below(HELD * 8);
    for (uint32_t v = 0; v < root_count; v++) {
        if (slot < HELD && held[slot][v])
            node_put(held[slot][v]);
        if (slot < HELD)
            held[slot][v] = nodes[v];
        else
            node_put(nodes[v]);
    }
}

static int change_name(uint32_t volume, uint32_t what, const char *path, const char *other, const char *link)
{
    struct node *directory, *node, *target;
    struct last_name last, new;
    int result = walk(volume, path, WALK_PARENT, &directory, &last);
    if (result)
        return result;
    switch (what) {
    case 0:
        result = unlink_name(directory, &last);
        break;
    case 1:
        result = remove_directory(directory, &last);
        break;
    case 2: case 3:
        result = make_directory(directory, &last, 0750);
        break;
    case 4:
        result = make_symlink(directory, &last, link, strlen(link));
        break;
    case 5:
        result = walk(volume, other, 0, &node, NULL);
        if (result == 0) {
            result = make_link(directory, &last, node);
            node_put(node);
        }
        break;
    case 6: case 7:
        result = walk(volume, other, WALK_PARENT, &target, &new);
        if (result == 0) {
            result = rename_name(directory, &last, target, &new);
            node_put(target);
        }
        break;
    default:
        result = make_node(directory, &last, what == 8 ? S_IFCHR | 0600 : S_IFREG | 0644,
                           what == 8 ? 0x405 : 0, &node);
        if (result == 0)
            node_put(node);
        break;
    }
    node_put(directory);
    return result;
}

static void change_held(void)
{
    uint32_t slot = random_below(HELD);
    if (!held[slot][0])
        return;
    if (random_below(3)) {
        write_and_read(held[slot], "(open file)");
        return;
    }
    for (uint32_t v = 0; v < root_count; v++) {
        node_put(held[slot][v]);
        held[slot][v] = NULL;
    }
}

void operations_start(struct node *const *volumes_roots, uint32_t count, uint32_t bytes_max)
{
    memset(held, 0, sizeof held);
    for (uint32_t v = 0; v < count; v++)
        roots[v] = volumes_roots[v];
    root_count = count;
    bytes_limit = bytes_max;
    bytes_written = 0;
}

void operations_step(void)
{
    char path[1100], other[1100], link[1100];
    int results[VOLUMES_MAX] = {0};
    uint32_t what = random_below(24);
    random_path(path);
    random_path(other);
    random_path(link);
    if (random_below(3) == 0)
        while (strlen(link) < 200)
            strcat(link, "/./");
    if (what >= 18) {
        change_file(path);
    } else if (what == 17) {
        change_held();
    } else if (what == 16 && random_below(20) == 0) {
        volumes_sync();
    } else {
        for (uint32_t v = 0; v < root_count; v++)
            results[v] = change_name(v, what, path, other, link);
        same("change", path, results);
    }
}

void operations_end(void)
{
    for (uint32_t slot = 0; slot < HELD; slot++)
        for (uint32_t v = 0; v < root_count; v++) {
            if (held[slot][v])
                node_put(held[slot][v]);
            held[slot][v] = NULL;
        }
}

static void compare_contents(struct node *a, struct node *b)
{
    static uint8_t left[CHUNK], right[CHUNK];
    for (uint32_t at = 0; at < a->size; at += CHUNK) {
        int x = read_node(a, at, left, CHUNK), y = read_node(b, at, right, CHUNK);
        if (x != y || x <= 0 || memcmp(left, right, x))
            fail("contents of inode %u differ near %u", b->number, at);
    }
}

static void compare_nodes(struct node *a, struct node *b, uint32_t depth)
{
    if (a->mode != b->mode || a->links != b->links || (!IS_DIRECTORY(a) && a->size != b->size) ||
        a->device != b->device)
        fail("inode %u: mode %o %o, links %u %u, size %u %u", b->number, a->mode, b->mode, a->links, b->links,
             a->size, b->size);
    if (IS_FILE(a))
        compare_contents(a, b);
    if (IS_SYMLINK(a)) {
        char left[1024], right[1024];
        int x = a->volume->type->get_link(a, left, sizeof left),
            y = b->volume->type->get_link(b, right, sizeof right);
        if (x != y || memcmp(left, right, x))
            fail("symbolic links differ");
    }
    if (IS_DIRECTORY(a))
        compare_trees((struct node *[]){a, b}, depth + 1);
}

static uint32_t count_entries(struct node *directory)
{
    union entry_space space;
    uint32_t position = 0, count = 0;
    int result;
    while ((result = directory->volume->type->list(directory, &position, &space.entry)) == 1)
        count++;
    if (result)
        fail("listing: %d", result);
    return count;
}

/* Both directories have entries of these names, types and contents. lost+found is of ext2 only. */
void compare_trees(struct node *const *trees, uint32_t depth)
{
    union entry_space space;
    uint32_t position = 0;
    struct directory_entry *entry = &space.entry;
    if (count_entries(trees[0]) + (depth == 0) != count_entries(trees[1]))
        fail("numbers of entries differ: %u and %u", count_entries(trees[0]), count_entries(trees[1]));
    while (trees[0]->volume->type->list(trees[0], &position, entry) == 1) {
        struct node *a, *b;
        uint32_t number;
        int result = trees[1]->volume->type->find(trees[1], entry->name, entry->length, &number);
        if (result)
            fail("%.*s: %d", entry->length, entry->name, result);
        if (entry->name[0] == '.')
            continue;
        if (node_get(trees[0]->volume, entry->inode, &a) || node_get(trees[1]->volume, number, &b))
            fail("%.*s: no inode", entry->length, entry->name);
        compare_nodes(a, b, depth);
        node_put(a);
        node_put(b);
    }
}
