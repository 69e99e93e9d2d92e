/* diff [-uq] FILE FILE: what is to be changed in the first file to get the second; -u shows three lines
   around it, -q only whether they differ. The status is 1 if they do. */

#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>
#include "diff.h"

#define AROUND 3
#define USAGE "diff [-uq] FILE FILE"

static struct lines a, b;

static int read_lines(struct lines *lines, const char *path)
{
    char *line = NULL;
    size_t room = 0, size = 0;
    ssize_t length;
    FILE *file = open_operand(path);
    if (!file)
        return -1;
    for (; (length = getline(&line, &room, file)) >= 0; lines->count++) {
        if ((size_t)lines->count == size)
            lines->line = need(lines->line, (size = 2 * size + 64) * sizeof *lines->line);
        lines->without_newline = line[length - 1] != '\n';
        /* A last line without a newline differs from one with it. */
        lines->line[lines->count] = need(NULL, length + 1);
        memcpy(lines->line[lines->count], line, length + 1);
    }
    free(line);
    lines->changed = need(NULL, lines->count + 1);
    memset(lines->changed, 0, lines->count + 1);
    if (file != stdin)
        fclose(file);
    return 0;
}

static void show(const char *mark, const struct lines *lines, int from, int to)
{
    for (; from < to; from++) {
        printf("%s%s", mark, lines->line[from]);
        if (from + 1 == lines->count && lines->without_newline)
            printf("\n\\ No newline at end of file\n");
    }
}

static int end_of(const struct lines *lines, int from, int changed)
{
    while (from < lines->count && lines->changed[from] == changed)
        from++;
    return from;
}

/* How many lines from these on are the same in both files. */
static int same_lines(int x, int y)
{
    int first = end_of(&a, x, 0) - x, second = end_of(&b, y, 0) - y;
    return first < second ? first : second;
}

static void show_range(int from, int to)
{
    printf(to - from > 1 ? "%d,%d" : "%d", to > from ? from + 1 : from, to);
}

static void show_normal(int x, int x_end, int y, int y_end)
{
    show_range(x, x_end);
    putchar(x == x_end ? 'a' : y == y_end ? 'd' : 'c');
    show_range(y, y_end);
    putchar('\n');
    show("< ", &a, x, x_end);
    if (x < x_end && y < y_end)
        puts("---");
    show("> ", &b, y, y_end);
}

static void all_normal(void)
{
    for (int x = 0, y = 0; x < a.count || y < b.count;) {
        int x_end = end_of(&a, x, 1), y_end = end_of(&b, y, 1);
        if (x < x_end || y < y_end)
            show_normal(x, x_end, y, y_end);
        int same = same_lines(x_end, y_end);
        x = x_end + same;
        y = y_end + same;
    }
}

static void show_unified_range(char mark, int from, int count)
{
    printf(count == 1 ? "%c%d" : "%c%d,%d", mark, from + (count > 0), count);
}

/* Changes with at most twice as many lines between them as are shown around them are shown together. */
static void show_unified(int *x, int *y)
{
    int before = *x < AROUND ? *x : AROUND, x_from = *x - before, y_from = *y - before, x_end = *x,
        y_end = *y, same;
    for (;;) {
        x_end = end_of(&a, x_end, 1);
        y_end = end_of(&b, y_end, 1);
        same = same_lines(x_end, y_end);
        if (same > 2 * AROUND || (x_end + same == a.count && y_end + same == b.count))
            break;
        x_end += same;
        y_end += same;
    }
    int after = same < AROUND ? same : AROUND;
    printf("@@ ");
    show_unified_range('-', x_from, x_end + after - x_from);
    putchar(' ');
    show_unified_range('+', y_from, y_end + after - y_from);
    puts(" @@");
    for (int i = x_from, j = y_from; i < x_end + after || j < y_end + after;) {
        int i_end = end_of(&a, i, 1), j_end = end_of(&b, j, 1);
        show("-", &a, i, i_end);
        show("+", &b, j, j_end);
        i = i_end;
        j = j_end;
        for (; i < x_end + after && !a.changed[i] && !b.changed[j]; i++, j++)
            show(" ", &a, i, i + 1);
    }
    *x = x_end + same;
    *y = y_end + same;
}

static void all_unified(char **paths)
{
    printf("--- %s\n+++ %s\n", paths[0], paths[1]);
    int x = same_lines(0, 0), y = x;
    while (x < a.count || y < b.count)
        show_unified(&x, &y);
}

int main(int argc, char **argv)
{
    int option, unified = 0, quiet = 0;
    while ((option = getopt(argc, argv, "uq")) != -1) {
        if (option == '?')
            return usage(USAGE);
        unified |= option == 'u';
        quiet |= option == 'q';
    }
    if (argc - optind != 2)
        return usage(USAGE);
    if (read_lines(&a, argv[optind]) || read_lines(&b, argv[optind + 1]))
        return 2;
    compare(&a, &b);
    if (!memchr(a.changed, 1, a.count) && !memchr(b.changed, 1, b.count))
        return 0;
    if (quiet)
        printf("Files %s and %s differ\n", argv[optind], argv[optind + 1]);
    else if (unified)
        all_unified(argv + optind);
    else
        all_normal();
    return 1;
}
