/* The entries of a directory as FS gives them, for opendir and its like. */

#ifndef SYS_DIRECTORY_H
#define SYS_DIRECTORY_H

#include <sys/types.h>
#include <tern/fs.h> /* struct directory_entry */

/* Reads as many whole entries as there is room for; 0 at the end. */
ssize_t read_directory(int fd, void *entries, size_t bytes);

#endif
