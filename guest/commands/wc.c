/* wc [-lwc] [FILE...]: counts lines, words and bytes. */

#include <ctype.h>
#include <stdio.h>
#include <unistd.h>

static unsigned long totals[3];
static int wanted[3];

static void show(const unsigned long *counts, const char *name)
{
    int all = !wanted[0] && !wanted[1] && !wanted[2];
    for (int i = 0; i < 3; i++)
        if (all || wanted[i])
            printf("%7lu ", counts[i]);
    printf("%s\n", name);
}

static void count(FILE *file, const char *name)
{
    unsigned long counts[3] = {0};
    int c, in_word = 0;
    while ((c = getc(file)) != EOF) {
        counts[0] += c == '\n';
        counts[1] += !isspace(c) && !in_word;
        counts[2]++;
        in_word = !isspace(c);
    }
    for (int i = 0; i < 3; i++)
        totals[i] += counts[i];
    show(counts, name);
}

int main(int argc, char **argv)
{
    int option, failed = 0;
    while ((option = getopt(argc, argv, "lwc")) != -1) {
        if (option == '?')
            return 2;
        wanted[option == 'l' ? 0 : option == 'w' ? 1 : 2] = 1;
    }
    if (optind == argc)
        count(stdin, "");
    for (int i = optind; i < argc; i++) {
        FILE *file = fopen(argv[i], "r");
        if (!file) {
            perror(argv[i]);
            failed = 1;
            continue;
        }
        count(file, argv[i]);
        fclose(file);
    }
    if (argc - optind > 1)
        show(totals, "total");
    return failed;
}
