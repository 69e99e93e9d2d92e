/* uniq [-cdu] [FILE]: drops lines that are equal to the one before. */

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int counts, only_repeated, only_single;

static void show(const char *line, unsigned long count)
{
    if (count == 0 || (only_repeated && count == 1) || (only_single && count > 1))
        return;
    if (counts)
        printf("%7lu ", count);
    puts(line);
}

int main(int argc, char **argv)
{
    static char line[65536], last[65536];
    unsigned long count = 0;
    int option;
    while ((option = getopt(argc, argv, "cdu")) != -1) {
        counts |= option == 'c';
        only_repeated |= option == 'd';
        only_single |= option == 'u';
        if (option == '?')
            return 2;
    }
    FILE *file = optind < argc ? fopen(argv[optind], "r") : stdin;
    if (!file) {
        perror(argv[optind]);
        return 1;
    }
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (count && strcmp(line, last) == 0) {
            count++;
            continue;
        }
        show(last, count);
        strcpy(last, line);
        count = 1;
    }
    show(last, count);
    return 0;
}
