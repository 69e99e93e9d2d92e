/* cut -b LIST|-c LIST|-f LIST [-d CHARACTER] [-s] [FILE...]: parts of each line. A list has numbers and
   ranges (2-4, -3, 5-), separated by commas or blanks. */

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>

static struct range {
    long first, last;
} *ranges;
static int range_count, fields, only_delimited, delimiter = '\t';

static int read_list(char *text)
{
    for (; *text; text += *text == ',' || isblank(*text)) {
        struct range range = {1, 1};
        int open = *text == '-';
        if (!open)
            range.first = range.last = strtol(text, &text, 10);
        if (*text == '-') {
            text++;
            range.last = LONG_MAX;
            if (isdigit(*text))
                range.last = strtol(text, &text, 10);
            else if (open)
                return -1;
        }
        if (range.first < 1 || range.last < range.first || (*text && *text != ',' && !isblank(*text)))
            return -1;
        ranges = need(ranges, (range_count + 1) * sizeof *ranges);
        ranges[range_count++] = range;
    }
    return range_count ? 0 : -1;
}

static int selected(long number)
{
    for (int i = 0; i < range_count; i++)
        if (number >= ranges[i].first && number <= ranges[i].last)
            return 1;
    return 0;
}

static void show_fields(const char *line, const char *end)
{
    int shown = 0;
    if (!memchr(line, delimiter, end - line)) {
        if (!only_delimited)
            puts(line);
        return;
    }
    for (long number = 1;; number++) {
        const char *stop = memchr(line, delimiter, end - line);
        size_t length = (stop ? stop : end) - line;
        if (selected(number)) {
            if (shown++)
                putchar(delimiter);
            fwrite(line, 1, length, stdout);
        }
        if (!stop)
            break;
        line = stop + 1;
    }
    putchar('\n');
}

static void cut(FILE *file, const char *name)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    (void)name;
    while ((length = read_line(&line, &room, file)) >= 0) {
        if (fields) {
            show_fields(line, line + length);
            continue;
        }
        for (ssize_t i = 0; i < length; i++)
            if (selected(i + 1))
                putchar(line[i]);
        putchar('\n');
    }
    free(line);
}

int main(int argc, char **argv)
{
    int option, bad = 0;
    while ((option = getopt(argc, argv, "b:c:f:d:sn")) != -1) {
        if (option == 'd')
            delimiter = (unsigned char)*optarg, bad |= strlen(optarg) != 1;
        else if (option == 'b' || option == 'c' || option == 'f')
            fields = option == 'f', bad |= range_count || read_list(optarg);
        else
            only_delimited |= option == 's', bad |= option == '?';
    }
    if (bad || !range_count)
        return usage("cut -b LIST|-c LIST|-f LIST [-d CHARACTER] [-s] [FILE...]");
    return each_operand(argc - optind, argv + optind, cut);
}
