/* umount DIRECTORY: ends the use of a file system, whose changes are written. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: umount DIRECTORY\n");
        return 2;
    }
    if (umount(argv[1]) == 0)
        return 0;
    fprintf(stderr, "umount: %s: %s\n", argv[1], strerror(errno));
    return 1;
}
