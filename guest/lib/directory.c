/* Directories. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/directory.h>

struct directory {
    int descriptor;
    size_t at, bytes;
    struct dirent entry;
    uint32_t buffer[1024];   /* of struct directory_entry, each aligned to 4 */
};

DIR *opendir(const char *path)
{
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    DIR *directory;

    if (descriptor < 0)
        return NULL;
    directory = malloc(sizeof *directory);
    if (!directory) {
        close(descriptor);
        return NULL;
    }
    directory->descriptor = descriptor;
    directory->at = directory->bytes = 0;
    return directory;
}

struct dirent *readdir(DIR *directory)
{
    struct directory_entry *entry;

    if (directory->at >= directory->bytes) {
        int bytes = read_directory(directory->descriptor, directory->buffer, sizeof directory->buffer);

        if (bytes <= 0)
            return NULL;
        directory->at = 0;
        directory->bytes = bytes;
    }
    entry = (struct directory_entry *)((char *)directory->buffer + directory->at);
    directory->at += entry->bytes ? entry->bytes : sizeof directory->buffer;
    directory->entry.d_ino = entry->inode;
    directory->entry.d_type = entry->type;
    memcpy(directory->entry.d_name, entry->name, entry->length);
    directory->entry.d_name[entry->length] = 0;
    return &directory->entry;
}

void rewinddir(DIR *directory)
{
    lseek(directory->descriptor, 0, SEEK_SET);
    directory->at = directory->bytes = 0;
}

int closedir(DIR *directory)
{
    int result = close(directory->descriptor);

    free(directory);
    return result;
}

int dirfd(DIR *directory)
{
    return directory->descriptor;
}
