/* Executes recipes: each line by the shell, or at once where it is a command and its words. */

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tern/command.h>
#include <unistd.h>
#include "make.h"
#include "recipe.h"

unsigned long commands_executed;

static volatile sig_atomic_t interrupted; /* by this signal */

/* What a line begins with: '@' does not show it, '-' ignores that it fails, '+' executes it with -n, too. */
struct prefix {
    int quiet, ignore, always;
};

static const char *read_prefix(const char *line, struct prefix *prefix)
{
    for (; *line && strchr("@-+ \t\n", *line); line++) {
        prefix->quiet |= *line == '@';
        prefix->ignore |= *line == '-';
        prefix->always |= *line == '+';
    }
    return line;
}

/* The words of a command that the shell would just execute, or NULL. */
static char **simple_words(const char *command, char **words)
{
    static const char *const of_shell[] = {
        ".", ":", "alias", "bg", "break", "case", "cd", "command", "continue", "eval", "exec", "exit",
        "export", "fc", "fg", "for", "getopts", "hash", "if", "jobs", "login", "logout", "read", "readonly",
        "return", "set", "shift", "test", "times", "trap", "type", "ulimit", "umask", "unalias", "unset",
        "until", "wait", "while",
    };
    char **argv = NULL, *rest;
    size_t count = 0;
    if (command[strcspn(command, "#;\"'*?[]&|<>(){}$`^~!\\=\n")])
        return NULL;
    *words = copy(command, strlen(command));
    for (char *word = strtok_r(*words, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
        argv = need(argv, (count + 2) * sizeof *argv);
        argv[count++] = word;
        argv[count] = NULL;
    }
    for (size_t i = 0; argv && i < sizeof of_shell / sizeof *of_shell; i++)
        if (strcmp(argv[0], of_shell[i]) == 0) {
            free(argv);
            argv = NULL;
        }
    if (!argv)
        free(*words);
    return argv;
}

static void note_signal(int number)
{
    interrupted = number;
}

/* Executes the command and returns its status, as waitpid gives it. */
static int execute(const char *command)
{
    char *words = NULL, **simple = simple_words(command, &words);
    const struct variable *shell = variable_find("SHELL", 5);
    char *by_shell[] = {shell ? shell->value : "/bin/sh", "-c", (char *)command, NULL};
    char **argv = simple ? simple : by_shell;
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        execvp(argv[0], argv);
        say("%s: %s", argv[0], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    if (pid < 0)
        fatal(NULL, "%s", strerror(errno));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            fatal(NULL, "%s", strerror(errno));
    if (simple)
        free(words);
    free(simple);
    return status;
}

/* Says why a line failed. */
static void say_failed(const struct file *file, int number, int status, int ignored)
{
    const char *stars = ignored ? "" : "*** ", *end = ignored ? " (ignored)" : "";
    const char *makefile = file->recipe->place.file;
    if (WIFSIGNALED(status))
        say("%s[%s:%d: %s] %s%s", stars, makefile, number, file->name, strsignal(WTERMSIG(status)), end);
    else
        say("%s[%s:%d: %s] Error %d%s", stars, makefile, number, file->name, WEXITSTATUS(status), end);
}

/* Removes a file that was half made, so that it does not pass for a new one. */
static void remove_half_made(struct file *file)
{
    struct stat status;
    if (file->phony || stat(file->name, &status) || !S_ISREG(status.st_mode) ||
        (file->exists && status.st_mtime == (time_t)file->time))
        return;
    say("*** Deleting file '%s'", file->name);
    unlink(file->name);
}

/* Executes one line. Returns whether the recipe has failed. */
static int execute_line(struct file *file, const char *line, int number, struct prefix prefix)
{
    line = read_prefix(line, &prefix);
    if (!*line)
        return 0;
    commands_executed++;
    if (dry_run || (!prefix.quiet && !silent))
        puts(line);
    if (dry_run && !prefix.always)
        return 0;
    int status = execute(line);
    if (interrupted) {
        remove_half_made(file);
        signal(interrupted, SIG_DFL);
        raise(interrupted);
    }
    if (status == 0)
        return 0;
    int ignored = prefix.ignore || ignore_errors;
    say_failed(file, number, status, ignored);
    return !ignored;
}

/* Executes a line of the recipe, which may have become several. */
static int execute_lines(struct file *file, char *lines, int number, struct prefix prefix)
{
    int failed = 0;
    for (char *line = lines, *end; line && !failed; line = end) {
        for (end = strchr(line, '\n'); end && end > line && end[-1] == '\\'; end = strchr(end + 1, '\n'))
            ;
        if (end)
            *end++ = 0;
        failed = execute_line(file, line, number, prefix);
    }
    return failed;
}

int recipe_execute(struct file *file)
{
    const struct recipe *recipe = file->recipe;
    char **lines = need(NULL, recipe->count * sizeof *lines + 1);
    struct place before = reading;
    int failed = 0;
    signal(SIGINT, note_signal);
    signal(SIGTERM, note_signal);
    for (int i = 0; i < recipe->count; i++) {
        reading = (struct place){recipe->place.file, recipe->numbers[i]};
        lines[i] = expand(recipe->lines[i]);
    }
    environment_write();
    for (int i = 0; i < recipe->count && !failed; i++) {
        struct prefix prefix = {0};
        read_prefix(recipe->lines[i], &prefix);
        failed = execute_lines(file, lines[i], recipe->numbers[i], prefix);
    }
    if (failed && delete_on_error)
        remove_half_made(file);
    for (int i = 0; i < recipe->count; i++)
        free(lines[i]);
    free(lines);
    reading = before;
    return failed;
}
