/* tac [FILE...]: the lines of each file, the last one first. */

#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>

static void reverse(FILE *file, const char *name)
{
    char *line = NULL, **lines = NULL;
    size_t room = 0, count = 0, size = 0;
    (void)name;
    while (getline(&line, &room, file) >= 0) {
        if (count == size)
            lines = need(lines, (size = size ? 2 * size : 64) * sizeof *lines);
        lines[count] = need(NULL, strlen(line) + 1);
        strcpy(lines[count++], line);
    }
    while (count > 0) {
        fputs(lines[--count], stdout);
        free(lines[count]);
    }
    free(lines);
    free(line);
}

int main(int argc, char **argv)
{
    if (getopt(argc, argv, "") != -1)
        return usage("tac [FILE...]");
    return each_operand(argc - optind, argv + optind, reverse);
}
