/* basename PATH [SUFFIX]: a path without its directories and its suffix. */

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: basename PATH [SUFFIX]\n");
        return 2;
    }
    char *path = argv[1];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = 0;
    char *slash = strrchr(path, '/');
    if (slash && slash[1])
        path = slash + 1;
    length = strlen(path);
    size_t suffix = argc > 2 ? strlen(argv[2]) : 0;
    if (suffix && suffix < length && strcmp(path + length - suffix, argv[2]) == 0)
        path[length - suffix] = 0;
    puts(path);
    return 0;
}
