/* sort [-nru] [FILE...]: sorts lines, by numbers with -n. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char **lines;
static size_t count, size;
static int by_number, reverse, unique;

static int compare(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    int result = 0;
    if (by_number) {
        double p = strtod(x, NULL), q = strtod(y, NULL);
        result = (p > q) - (p < q);
    }
    if (!result)
        result = strcmp(x, y);
    return reverse ? -result : result;
}

static void take(FILE *file)
{
    static char line[65536];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (count == size) {
            size = size ? 2 * size : 256;
            lines = realloc(lines, size * sizeof *lines);
        }
        if (!lines || !(lines[count++] = strdup(line))) {
            fprintf(stderr, "sort: out of memory\n");
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "nru")) != -1) {
        by_number |= option == 'n';
        reverse |= option == 'r';
        unique |= option == 'u';
        if (option == '?')
            return 2;
    }
    if (optind == argc)
        take(stdin);
    for (int i = optind; i < argc; i++) {
        FILE *file = fopen(argv[i], "r");
        if (!file) {
            perror(argv[i]);
            return 2;
        }
        take(file);
        fclose(file);
    }
    if (count)
        qsort(lines, count, sizeof *lines, compare);
    for (size_t i = 0; i < count; i++)
        if (!unique || i == 0 || strcmp(lines[i], lines[i - 1]))
            puts(lines[i]);
    return 0;
}
