/* ln [-s] FROM TO: another name for a file, or a symbolic link. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int symbolic = argc > 1 && strcmp(argv[1], "-s") == 0;
    if (argc != 3 + symbolic) {
        fprintf(stderr, "usage: ln [-s] FROM TO\n");
        return 2;
    }
    if ((symbolic ? symlink : link)(argv[1 + symbolic], argv[2 + symbolic]) == 0)
        return 0;
    fprintf(stderr, "ln: %s: %s\n", argv[2 + symbolic], strerror(errno));
    return 1;
}
