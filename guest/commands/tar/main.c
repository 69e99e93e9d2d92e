/* tar c|x|t[vzf] [ARCHIVE] [-C DIRECTORY] [FILE...]: makes an archive of files (ustar), extracts files from
   one, or lists them; without f it is standard output or input. z expands a compressed one (not with c). It
   reads what GNU tar writes, too: long names, and the extensions of pax. */

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tern/command.h>
#include <unistd.h>
#include "tar.h"

#define USAGE "tar c|x|t[vzf] [ARCHIVE] [-C DIRECTORY] [FILE...]"

int verbose, failed;

static char action;
static int compressed;
static const char *path = "-", *directory;
static pid_t expander;

void complain(const char *name, const char *text)
{
    fflush(stdout);
    fprintf(stderr, "tar: %s: %s\n", name, text);
    failed = 2;
}

void complain_errno(const char *name)
{
    complain(name, strerror(errno));
}

void fatal(const char *name, const char *text)
{
    complain(name, text);
    exit(2);
}

/* Letters of the first operand. */
static int read_letter(char letter, int *needs_path, int *needs_directory)
{
    switch (letter) {
    case 'c':
    case 'x':
    case 't':
        if (action && action != letter)
            return 1;
        action = letter;
        return 0;
    case 'v':
        verbose = 1;
        return 0;
    case 'z':
        compressed = 1;
        return 0;
    case 'f':
        *needs_path = 1;
        return 0;
    case 'C':
        *needs_directory = 1;
        return 0;
    default:
        return 1;
    }
}

/* Returns the number of the first file's name, or -1. */
static int read_arguments(int argc, char **argv)
{
    int at = 1;
    while (at < argc && (at == 1 || argv[at][0] == '-')) {
        int needs_path = 0, needs_directory = 0;
        const char *letters = argv[at] + (argv[at][0] == '-');
        if (strcmp(argv[at], "--") == 0)
            return at + 1;
        for (at++; *letters; letters++) {
            if (read_letter(*letters, &needs_path, &needs_directory))
                return -1;
            if (at == argc && (needs_path || needs_directory))
                return -1;
            if (needs_path)
                path = argv[at++];
            if (needs_directory)
                directory = argv[at++];
            needs_path = needs_directory = 0;
        }
    }
    return action && !(action == 'c' && compressed) ? at : -1;
}

/* The archive, expanded by gunzip. */
static FILE *expand(FILE *archive)
{
    int ends[2];
    if (pipe(ends))
        fatal("gunzip", strerror(errno));
    fflush(stdout);
    expander = fork();
    if (expander < 0)
        fatal("gunzip", strerror(errno));
    if (expander == 0) {
        dup2(fileno(archive), 0);
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        execlp("gunzip", "gunzip", "-c", NULL);
        _exit(127);
    }
    close(ends[1]);
    return fdopen(ends[0], "r");
}

static FILE *open_archive(void)
{
    if (action == 'c')
        return strcmp(path, "-") == 0 ? stdout : fopen(path, "w");
    FILE *archive = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    return archive && compressed ? expand(archive) : archive;
}

/* Whether the member is one of those that are named, or in one of them. */
static int is_wanted(const char *name, char *const names[], char *found)
{
    int wanted = names[0] == NULL;
    for (int i = 0; names[i]; i++) {
        size_t length = strlen(names[i]);
        while (length > 1 && names[i][length - 1] == '/')
            length--;
        if (strncmp(name, names[i], length) == 0 && (name[length] == 0 || name[length] == '/'))
            wanted = found[i] = 1;
    }
    return wanted;
}

static void read_members(FILE *archive, char *const names[], char *found)
{
    struct member member;
    while (member_next(archive, &member)) {
        int wanted = is_wanted(member.name, names, found);
        if (wanted && action == 'x') {
            extract_member(archive, &member);
            continue;
        }
        if (wanted)
            list_member(&member);
        member_contents(archive, &member, NULL);
    }
    if (action == 'x')
        extract_end();
    for (int i = 0; names[i]; i++)
        if (!found[i])
            complain(names[i], "not found in the archive");
}

/* Reads the rest, which gunzip would else find nobody to give it to. */
static void end_expander(FILE *archive)
{
    char buffer[4096];
    int status;
    while (fread(buffer, 1, sizeof buffer, archive) > 0)
        ;
    if (waitpid(expander, &status, 0) < 0 || status != 0)
        complain(path, "it cannot be expanded");
}

int main(int argc, char **argv)
{
    int first = read_arguments(argc, argv);
    if (first < 0 || (action == 'c' && first == argc))
        return usage(USAGE);
    FILE *archive = open_archive();
    if (!archive)
        fatal(path, strerror(errno));
    if (directory && chdir(directory))
        fatal(directory, strerror(errno));
    if (action == 'c') {
        create(archive, argc - first, argv + first, archive == stdout ? stderr : stdout);
        if (archive != stdout && fclose(archive))
            complain_errno(path);
        return failed;
    }
    char *found = calloc(argc - first + 1, 1);
    if (!found)
        fatal(path, "out of memory");
    read_members(archive, argv + first, found);
    if (expander)
        end_expander(archive);
    return failed;
}
