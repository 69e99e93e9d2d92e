/* make [-Bikns] [-C DIRECTORY] [-f MAKEFILE] [NAME=VALUE...] [TARGET...]: brings targets up to date by the
   rules of a makefile, as GNU make understands them: explicit, pattern and static pattern rules, variables of
   all kinds, functions, conditional parts, `define`, `include`. It has no rules of its own. */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>
#include "make.h"

#define PATH_BYTES 1024
#define USAGE "make [-Bikns] [-C DIRECTORY] [-f MAKEFILE] [NAME=VALUE...] [TARGET...]"

int dry_run, go_on, ignore_errors, silent, always_make;

static const char *called;  /* "make", or "make[1]" where one make executes another */
static char directory[PATH_BYTES];

static void say_list(FILE *to, const char *format, va_list list)
{
    fflush(stdout);
    fprintf(to, "%s: ", called);
    vfprintf(to, format, list);
    fputc('\n', to);
    fflush(to);
}

void say(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    say_list(stderr, format, list);
    va_end(list);
}

void say_plainly(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    say_list(stdout, format, list);
    va_end(list);
}

void fatal(const struct place *place, const char *format, ...)
{
    va_list list;
    fflush(stdout);
    if (place && place->file)
        fprintf(stderr, "%s:%d: *** ", place->file, place->line);
    else
        fprintf(stderr, "%s: *** ", called);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, ".  Stop.\n");
    exit(2);
}

static void leave(void)
{
    say_plainly("Leaving directory '%s'", directory);
}

/* Numbers this make among those that execute each other. */
static void set_level(int level)
{
    static char name[20];
    char next[12];
    snprintf(name, sizeof name, level ? "make[%d]" : "make", level);
    called = name;
    snprintf(next, sizeof next, "%d", level + 1);
    variable_set(&global, "MAKELEVEL", next, 0, MAKEFILE);
    variable_export("MAKELEVEL", 9, 1);
}

struct operands {
    struct text goals, makefiles;
    int directories;
};

static int read_option(int option, struct operands *operands)
{
    switch (option) {
    case 'B':
        always_make = 1;
        break;
    case 'i':
        ignore_errors = 1;
        break;
    case 'k':
        go_on = 1;
        break;
    case 'n':
        dry_run = 1;
        break;
    case 's':
        silent = 1;
        break;
    case 'f':
        add_word(&operands->makefiles, optarg, strlen(optarg));
        break;
    case 'C':
        operands->directories = 1;
        if (chdir(optarg))
            fatal(NULL, "%s: %s", optarg, strerror(errno));
        break;
    default:
        return 0;
    }
    return 1;
}

static void read_operand(const char *operand, struct operands *operands)
{
    struct assignment assignment;
    if (assignment_parse(operand, &assignment)) {
        assign(&global, &assignment, COMMAND_LINE);
        assignment_free(&assignment);
    } else {
        add_word(&operands->goals, operand, strlen(operand));
    }
}

/* Options may stand behind operands, but for those behind "--". Returns whether all are right. */
static int read_arguments(int argc, char **argv, struct operands *operands)
{
    int option;
    while (optind < argc) {
        while ((option = getopt(argc, argv, "BC:f:ikns")) != -1)
            if (!read_option(option, operands))
                return 0;
        int plain = optind > 1 && strcmp(argv[optind - 1], "--") == 0;
        do {
            if (optind < argc)
                read_operand(argv[optind++], operands);
        } while (plain && optind < argc);
    }
    return 1;
}

static void read_makefiles(const struct operands *operands)
{
    const char *files = operands->makefiles.bytes, *file;
    size_t length;
    if (!files) {
        if (makefile_read("makefile", 0) && makefile_read("Makefile", 0) && !operands->goals.bytes)
            fatal(NULL, "No targets specified and no makefile found");
        return;
    }
    while ((file = next_word(&files, &length))) {
        char *path = copy(file, length);
        makefile_read(path, 1);
        free(path);
    }
}

static int build_goals(const char *goals)
{
    const char *goal;
    size_t length;
    int failed = 0;
    if (!goals && !default_goal)
        fatal(NULL, "No targets");
    if (!goals)
        return goal_build(default_goal);
    while ((!failed || go_on) && (goal = next_word(&goals, &length)))
        failed |= goal_build(file_named(goal, length));
    return failed;
}

int main(int argc, char **argv)
{
    struct operands operands = {0};
    const char *level = getenv("MAKELEVEL");
    int depth = level ? atoi(level) : 0;
    environment_read();
    variable_set(&global, "SHELL", "/bin/sh", 0, DEFAULT);
    variable_set(&global, "MAKE", argv[0], 0, DEFAULT);
    set_level(depth > 0 ? depth : 0);
    if (!read_arguments(argc, argv, &operands))
        return usage(USAGE);
    if (!getcwd(directory, sizeof directory))
        fatal(NULL, "the current directory: %s", strerror(errno));
    variable_set(&global, "CURDIR", directory, 0, DEFAULT);
    if (operands.directories || depth > 0) {
        say_plainly("Entering directory '%s'", directory);
        atexit(leave);
    }
    read_makefiles(&operands);
    return build_goals(operands.goals.bytes) ? 2 : 0;
}
