/* od [FILE]: shows a file as hexadecimal bytes and characters. */

#include <ctype.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    unsigned char line[16];
    unsigned long at = 0;
    size_t got;
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : stdin;
    if (!file) {
        perror(argv[1]);
        return 1;
    }
    while ((got = fread(line, 1, sizeof line, file)) > 0) {
        printf("%08lx ", at);
        for (size_t i = 0; i < sizeof line; i++)
            i < got ? printf(" %02x", line[i]) : printf("   ");
        printf("  ");
        for (size_t i = 0; i < got; i++)
            putchar(isprint(line[i]) ? line[i] : '.');
        putchar('\n');
        at += got;
    }
    return 0;
}
