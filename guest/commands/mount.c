/* mount [-r] DEVICE DIRECTORY: mounts an ext2 file system, with -r only for reading. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>

int main(int argc, char **argv)
{
    int read_only = argc > 1 && strcmp(argv[1], "-r") == 0;
    if (argc != 3 + read_only) {
        fprintf(stderr, "usage: mount [-r] DEVICE DIRECTORY\n");
        return 2;
    }
    if (mount(argv[1 + read_only], argv[2 + read_only], "ext2", read_only ? MS_RDONLY : 0, NULL) == 0)
        return 0;
    fprintf(stderr, "mount: %s: %s\n", argv[1 + read_only], strerror(errno));
    return 1;
}
