/* cmp FILE FILE: whether two files are equal; says where they differ first. */

#include <stdio.h>

int main(int argc, char **argv)
{
    FILE *a = argc == 3 ? fopen(argv[1], "rb") : NULL, *b = a ? fopen(argv[2], "rb") : NULL;
    unsigned long at = 1, line = 1;
    if (!a || !b) {
        if (argc == 3)
            perror(a ? argv[2] : argv[1]);
        else
            fprintf(stderr, "usage: cmp FILE FILE\n");
        return 2;
    }
    for (;; at++) {
        int x = getc(a), y = getc(b);
        if (x == EOF && y == EOF)
            return 0;
        if (x == EOF || y == EOF) {
            printf("cmp: %s is shorter\n", x == EOF ? argv[1] : argv[2]);
            return 1;
        }
        if (x != y) {
            printf("%s %s differ: byte %lu, line %lu\n", argv[1], argv[2], at, line);
            return 1;
        }
        line += x == '\n';
    }
}
