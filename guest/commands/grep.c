/* grep [-cinqv] PATTERN [FILE...]: shows lines that match a regular expression. */

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int count_only, ignore_case, numbers, quiet, invert, many, found;
static regex_t pattern;

static void search(FILE *file, const char *name)
{
    static char line[65536];
    unsigned long number = 0, count = 0;
    while (fgets(line, sizeof line, file)) {
        size_t length = strlen(line);
        number++;
        if (length && line[length - 1] == '\n')
            line[length - 1] = 0;
        if ((regexec(&pattern, line, 0, NULL, 0) == 0) == invert)
            continue;
        found = 1;
        count++;
        if (quiet || count_only)
            continue;
        if (many)
            printf("%s:", name);
        if (numbers)
            printf("%lu:", number);
        puts(line);
    }
    if (count_only && !quiet)
        printf("%s%s%lu\n", many ? name : "", many ? ":" : "", count);
}

int main(int argc, char **argv)
{
    int option, failed = 0, extended = 0;
    while ((option = getopt(argc, argv, "cinqvE")) != -1) {
        count_only |= option == 'c';
        ignore_case |= option == 'i';
        numbers |= option == 'n';
        quiet |= option == 'q';
        invert |= option == 'v';
        extended |= option == 'E';
        if (option == '?')
            return 2;
    }
    if (optind == argc) {
        fprintf(stderr, "usage: grep [-cinqvE] PATTERN [FILE...]\n");
        return 2;
    }
    if (regcomp(&pattern, argv[optind],
                REG_NOSUB | (ignore_case ? REG_ICASE : 0) | (extended ? REG_EXTENDED : 0))) {
        fprintf(stderr, "grep: %s is no regular expression\n", argv[optind]);
        return 2;
    }
    many = argc - optind > 2;
    if (optind + 1 == argc)
        search(stdin, "");
    for (int i = optind + 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "r");
        if (!file) {
            perror(argv[i]);
            failed = 1;
            continue;
        }
        search(file, argv[i]);
        fclose(file);
    }
    return failed ? 2 : !found;
}
