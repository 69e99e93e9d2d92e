/* fold [-bs] [-w WIDTH] [FILE...]: breaks lines that are longer than 80 or WIDTH columns (bytes with -b),
   with -s after a blank. */

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>

static long width = 80;
static int bytes, at_blanks;

static long column_after(long column, char c)
{
    if (bytes)
        return column + 1;
    return c == '\b' ? column - (column > 0) : c == '\r' ? 0 : c == '\t' ? (column / 8 + 1) * 8 : column + 1;
}

/* Returns how many characters of the line fit. */
static size_t fitting(const char *line, size_t length)
{
    long column = 0;
    size_t count = 0, blank = 0;
    for (; count < length; count++) {
        column = column_after(column, line[count]);
        if (column > width && count > 0)
            break;
        if (isblank(line[count]))
            blank = count + 1;
    }
    return count < length && at_blanks && blank ? blank : count;
}

static void fold(FILE *file, const char *name)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    (void)name;
    while ((length = getline(&line, &room, file)) >= 0) {
        int whole = line[length - 1] == '\n';
        size_t done = 0, part;
        length -= whole;
        for (; (part = fitting(line + done, length - done)) < length - done; done += part) {
            fwrite(line + done, 1, part, stdout);
            putchar('\n');
        }
        fwrite(line + done, 1, part + whole, stdout);
    }
    free(line);
}

int main(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "bsw:")) != -1) {
        bytes |= option == 'b';
        at_blanks |= option == 's';
        if (option == 'w')
            width = atol(optarg);
        if (option == '?' || width < 1)
            return usage("fold [-bs] [-w WIDTH] [FILE...]");
    }
    return each_operand(argc - optind, argv + optind, fold);
}
