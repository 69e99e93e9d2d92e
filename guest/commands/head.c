/* head [-n LINES | -LINES] [FILE...]: the first lines, 10 if no number is given. */

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void show(FILE *file, long lines)
{
    int c;
    while (lines > 0 && (c = getc(file)) != EOF) {
        putchar(c);
        lines -= c == '\n';
    }
}

int main(int argc, char **argv)
{
    long lines = 10;
    int option, failed = 0;
    if (argc > 1 && argv[1][0] == '-' && isdigit((unsigned char)argv[1][1])) {
        lines = atol(argv[1] + 1);
        optind = 2;
    }
    while ((option = getopt(argc, argv, "n:")) != -1) {
        if (option == '?')
            return 2;
        lines = atol(optarg);
    }
    if (optind == argc)
        show(stdin, lines);
    for (int i = optind; i < argc; i++) {
        FILE *file = fopen(argv[i], "r");
        if (!file) {
            perror(argv[i]);
            failed = 1;
            continue;
        }
        show(file, lines);
        fclose(file);
    }
    return failed;
}
