/* The table of nodes that are in use. */

#include <string.h>
#include "outside.h"
#include "vfs.h"

#define HASHES 64

static struct node nodes[NODES];
static struct node *hashes[HASHES];
static uint32_t search_from; /* where a free entry is likely */

static struct node **hash_of(const struct volume *volume, uint32_t number)
{
    return &hashes[(number + (uint32_t)(volume - volumes) * 7) % HASHES];
}

static struct node *node_lookup(const struct volume *volume, uint32_t number)
{
    struct node *node = *hash_of(volume, number);
    while (node && (node->volume != volume || node->number != number))
        node = node->next;
    return node;
}

int node_new(struct volume *volume, uint32_t number, struct node **made)
{
    if (node_lookup(volume, number))
        return -EIO;
    for (uint32_t i = 0; i < NODES; i++) {
        struct node *node = &nodes[(search_from + i) % NODES];
        if (node->volume)
            continue;
        memset(node, 0, sizeof *node);
        node->volume = volume;
        node->number = number;
        node->references = 1;
        struct node **hash = hash_of(volume, number);
        node->next = *hash;
        *hash = node;
        search_from = (uint32_t)(node - nodes) + 1;
        *made = node;
        return 0;
    }
    return -ENFILE;
}

static void node_forget(struct node *node)
{
    struct node **at = hash_of(node->volume, node->number);
    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    node->volume = NULL;
    search_from = (uint32_t)(node - nodes);
}

int node_get(struct volume *volume, uint32_t number, struct node **found)
{
    struct node *node = node_lookup(volume, number);
    if (!node) {
        int result = node_new(volume, number, &node);
        if (result)
            return result;
        result = volume->type->load(node);
        if (result) {
            node_forget(node);
            return result;
        }
    } else {
        node->references++;
    }
    *found = node;
    return 0;
}

void node_hold(struct node *node)
{
    node->references++;
}

void node_put(struct node *node)
{
    if (--node->references)
        return;
    if (node->links == 0)
        node->volume->type->discard(node);
    else if (node->changed)
        node->volume->type->store(node);
    node_forget(node);
}

void node_touch(struct node *node)
{
    node->modified = node->status_changed = now();
    node->changed = 1;
}

int nodes_store(struct volume *volume)
{
    int result = 0;
    for (struct node *node = nodes; node < nodes + NODES; node++) {
        if (!node->volume || !node->changed || (volume && node->volume != volume))
            continue;
        int stored = node->volume->type->store(node);
        if (stored)
            result = stored;
    }
    return result;
}

uint32_t nodes_used(const struct volume *volume)
{
    uint32_t used = 0;
    for (struct node *node = nodes; node < nodes + NODES; node++)
        if (node->volume == volume)
            used += node->references;
    return used;
}

uint8_t entry_type(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG: return 1;
    case S_IFDIR: return 2;
    case S_IFCHR: return 3;
    case S_IFBLK: return 4;
    case S_IFIFO: return 5;
    case S_IFSOCK: return 6;
    case S_IFLNK: return 7;
    }
    return 0;
}
