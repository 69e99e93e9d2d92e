/* sed [-nEi] [-e SCRIPT]... [-f FILE]... [SCRIPT] [FILE...]: edits lines. -i changes the files themselves. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tern/command.h>
#include <unistd.h>
#include "sed.h"

#define USAGE "sed [-nEi] [-e SCRIPT]... [-f FILE]... [SCRIPT] [FILE...]"

static struct text script;

static void add_script(const char *text)
{
    text_add(&script, text, strlen(text));
    text_add(&script, "\n", 1);
}

static int add_file(const char *path)
{
    char *line = NULL;
    size_t room = 0;
    FILE *file = open_operand(path);
    if (!file)
        return 1;
    while (read_line(&line, &room, file) >= 0)
        add_script(line);
    free(line);
    fclose(file);
    return 0;
}

/* The result goes to a file beside it, which then takes its name. */
static int edit(struct command *commands, int quiet, char *path)
{
    struct stat old;
    char *beside = need(NULL, strlen(path) + sizeof ".XXXXXX");
    strcat(strcpy(beside, path), ".XXXXXX");
    int fd = stat(path, &old) ? -1 : mkstemp(beside);
    FILE *output = fd < 0 ? NULL : fdopen(fd, "w");
    if (!output) {
        fprintf(stderr, "sed: %s: %s\n", path, strerror(errno));
        return 2;
    }
    input_files(1, &path);
    int status = execute_script(commands, quiet, output);
    int lost = ferror(output);
    if (fclose(output) || lost || chmod(beside, old.st_mode & 07777) || rename(beside, path)) {
        fprintf(stderr, "sed: %s: %s\n", path, strerror(errno));
        unlink(beside);
        return 2;
    }
    free(beside);
    return status;
}

int main(int argc, char **argv)
{
    int option, quiet = 0, flags = 0, in_place = 0, status = 0;
    while ((option = getopt(argc, argv, "nErie:f:")) != -1) {
        quiet |= option == 'n';
        in_place |= option == 'i';
        flags |= option == 'E' || option == 'r' ? REG_EXTENDED : 0;
        if (option == 'e')
            add_script(optarg);
        if (option == '?')
            return usage(USAGE);
        if (option == 'f' && add_file(optarg))
            return 2;
    }
    if (!script.used && optind < argc)
        add_script(argv[optind++]);
    if (!script.used)
        return usage(USAGE);
    struct command *commands = parse_script(script.bytes, flags);
    for (; in_place && optind < argc; optind++) {
        int result = edit(commands, quiet, argv[optind]);
        status = result ? result : status;
    }
    if (in_place)
        return status;
    input_files(argc - optind, argv + optind);
    status = execute_script(commands, quiet, stdout);
    return status ? status : input_failed() ? 2 : 0;
}
