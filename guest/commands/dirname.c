/* dirname PATH: the directory part of a path. */

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: dirname PATH\n");
        return 2;
    }
    char *path = argv[1];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = 0;
    char *slash = strrchr(path, '/');
    if (!slash) {
        puts(".");
        return 0;
    }
    while (slash > path && slash[-1] == '/')
        slash--;
    slash[slash == path] = 0;
    puts(path);
    return 0;
}
