/* paste [-s] [-d LIST] FILE...: lines of the files side by side, or with -s all lines of a file as one.
   Between them are the characters of the list in turn, a tab otherwise. */

#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>

#define USAGE "paste [-s] [-d LIST] FILE..."
#define NONE_BETWEEN (-1)

static int *separators, separator_count;

static void read_separators(const char *text)
{
    separators = need(NULL, (strlen(text) + 1) * sizeof *separators);
    for (; *text; text++) {
        int c = (unsigned char)*text;
        if (c == '\\' && text[1]) {
            c = (unsigned char)*++text;
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c == '0' ? NONE_BETWEEN : c;
        }
        separators[separator_count++] = c;
    }
    if (!separator_count)
        separators[separator_count++] = NONE_BETWEEN;
}

static void separate(int which)
{
    int c = separators[which % separator_count];
    if (c != NONE_BETWEEN)
        putchar(c);
}

static void as_one(FILE *file, const char *name)
{
    char *line = NULL;
    size_t room = 0;
    (void)name;
    for (int i = 0; read_line(&line, &room, file) >= 0; i++) {
        if (i)
            separate(i - 1);
        fputs(line, stdout);
    }
    putchar('\n');
    free(line);
}

/* Returns whether a file had a line. What comes before the first that has one is printed then only. */
static int one_row(FILE **files, int count)
{
    static char *line;
    static size_t room;
    int before = 0, any = 0;
    for (int i = 0; i < count; i++) {
        if (files[i] && read_line(&line, &room, files[i]) >= 0) {
            for (; before < i; before++)
                separate(before);
            fputs(line, stdout);
            any = 1;
        } else {
            files[i] = NULL;
        }
    }
    for (; any && before < count - 1; before++)
        separate(before);
    if (any)
        putchar('\n');
    return any;
}

int main(int argc, char **argv)
{
    int option, serial = 0;
    while ((option = getopt(argc, argv, "sd:")) != -1) {
        if (option == '?')
            return usage(USAGE);
        if (option == 's')
            serial = 1;
        else
            read_separators(optarg);
    }
    if (!separator_count)
        read_separators("\t");
    if (serial)
        return each_operand(argc - optind, argv + optind, as_one);
    if (optind == argc)
        return usage(USAGE);
    int count = argc - optind;
    FILE **files = need(NULL, count * sizeof *files);
    for (int i = 0; i < count; i++)
        if (!(files[i] = open_operand(argv[optind + i])))
            return 1;
    while (one_row(files, count))
        ;
    return 0;
}
