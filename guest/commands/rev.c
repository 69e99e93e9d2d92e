/* rev [FILE...]: each line backwards. */

#include <stdlib.h>
#include <tern/command.h>
#include <unistd.h>

static void reverse(FILE *file, const char *name)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    (void)name;
    while ((length = read_line(&line, &room, file)) >= 0) {
        while (length > 0)
            putchar(line[--length]);
        putchar('\n');
    }
    free(line);
}

int main(int argc, char **argv)
{
    if (getopt(argc, argv, "") != -1)
        return usage("rev [FILE...]");
    return each_operand(argc - optind, argv + optind, reverse);
}
