/* tail [-n LINES | -LINES] [FILE]: the last lines, 10 if no number is given. */

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINES_MAX 4096

int main(int argc, char **argv)
{
    static char line[65536], *kept[LINES_MAX];
    long lines = 10, count = 0;
    int option;
    if (argc > 1 && argv[1][0] == '-' && isdigit((unsigned char)argv[1][1])) {
        lines = atol(argv[1] + 1);
        optind = 2;
    }
    while ((option = getopt(argc, argv, "n:")) != -1) {
        if (option == '?')
            return 2;
        lines = atol(optarg);
    }
    FILE *file = optind < argc ? fopen(argv[optind], "r") : stdin;
    if (!file) {
        perror(argv[optind]);
        return 1;
    }
    if (lines < 1 || lines > LINES_MAX)
        lines = lines < 1 ? 1 : LINES_MAX;
    for (; fgets(line, sizeof line, file); count++) {
        free(kept[count % lines]);
        kept[count % lines] = strdup(line);
    }
    for (long i = count > lines ? count - lines : 0; i < count; i++)
        if (kept[i % lines])
            fputs(kept[i % lines], stdout);
    return 0;
}
