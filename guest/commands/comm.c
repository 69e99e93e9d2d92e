/* comm [-123] FILE FILE: lines of two sorted files, in three columns: only in the first, only in the second,
   in both. A number leaves its column out. */

#include <string.h>
#include <tern/command.h>
#include <unistd.h>

static int left_out[3];

static void show(int column, const char *line)
{
    if (left_out[column])
        return;
    for (int i = 0; i < column; i++)
        if (!left_out[i])
            putchar('\t');
    puts(line);
}

int main(int argc, char **argv)
{
    char *lines[2] = {NULL, NULL};
    size_t rooms[2] = {0};
    ssize_t got[2];
    int option;
    while ((option = getopt(argc, argv, "123")) != -1) {
        if (option == '?')
            return usage("comm [-123] FILE FILE");
        left_out[option - '1'] = 1;
    }
    if (argc - optind != 2)
        return usage("comm [-123] FILE FILE");
    FILE *files[2];
    for (int i = 0; i < 2; i++) {
        if (!(files[i] = open_operand(argv[optind + i])))
            return 1;
        got[i] = read_line(&lines[i], &rooms[i], files[i]);
    }
    while (got[0] >= 0 || got[1] >= 0) {
        int order = got[0] < 0 ? 1 : got[1] < 0 ? -1 : strcmp(lines[0], lines[1]);
        show(order < 0 ? 0 : order > 0 ? 1 : 2, lines[order > 0]);
        if (order <= 0)
            got[0] = read_line(&lines[0], &rooms[0], files[0]);
        if (order >= 0)
            got[1] = read_line(&lines[1], &rooms[1], files[1]);
    }
    return 0;
}
