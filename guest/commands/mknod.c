/* mknod PATH b|c MAJOR MINOR, mknod PATH p: makes a device file or a pipe with a name. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int main(int argc, char **argv)
{
    char type = argc > 2 ? argv[2][0] : 0;
    if (!((type == 'p' && argc == 3) || ((type == 'b' || type == 'c') && argc == 5))) {
        fprintf(stderr, "usage: mknod PATH b|c MAJOR MINOR\n       mknod PATH p\n");
        return 2;
    }
    mode_t mode = (type == 'p' ? S_IFIFO : type == 'b' ? S_IFBLK : S_IFCHR) | 0666;
    dev_t device = type == 'p' ? 0 : atoi(argv[3]) << 8 | atoi(argv[4]);
    if (mknod(argv[1], mode, device) == 0)
        return 0;
    fprintf(stderr, "mknod: %s: %s\n", argv[1], strerror(errno));
    return 1;
}
