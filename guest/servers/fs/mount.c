/* The table of volumes. */

#include <string.h>
#include "cache.h"
#include "outside.h"
#include "vfs.h"

struct volume volumes[VOLUMES];

struct volume *volume_free(void)
{
    for (struct volume *volume = volumes; volume < volumes + VOLUMES; volume++)
        if (!volume->type)
            return volume;
    return NULL;
}

/* The volume keeps a reference to the directory. */
int volume_attach(struct volume *volume, struct node *directory)
{
    if (!IS_DIRECTORY(directory))
        return -ENOTDIR;
    if (directory->mounted || directory == directory->volume->root)
        return -EBUSY;
    program_changes++;
    directory->mounted = volume;
    volume->covered = directory;
    node_hold(directory);
    return 0;
}

/* The caller's own reference to the root is given back, whatever the result. */
int volume_detach(struct node *root)
{
    struct volume *volume = root->volume;
    int result = 0;
    if (root != volume->root || !volume->covered)
        result = -EINVAL;
    node_put(root);
    if (result)
        return result;
    /* The only reference left is then the volume's own to its root. */
    if (nodes_used(volume) != 1)
        return -EBUSY;
    if (volume->root->changed)
        volume->type->store(volume->root);
    volume->root->changed = 0;
    result = volume->type->close(volume);
    if (result)
        return result;
    node_put(volume->root);
    volume->covered->mounted = NULL;
    node_put(volume->covered);
    memset(volume, 0, sizeof *volume);
    return 0;
}

int volumes_sync(void)
{
    int result = nodes_store(NULL);
    for (struct volume *volume = volumes; volume < volumes + VOLUMES; volume++) {
        if (!volume->type)
            continue;
        int synced = volume->type->sync(volume);
        if (synced)
            result = synced;
    }
    return result;
}
