/* The shell: options, and where its commands come from. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "edit.h"
#include "sh.h"

#define SCRIPT_MAX 0x400000

char **parameters;
int parameter_count, last_status, is_interactive, option_exit, option_trace, option_unset;
const char *shell_name = "sh";
pid_t shell_pid, last_background;

void complain(const char *what, const char *why)
{
    fflush(stdout);
    fprintf(stderr, "sh: %s: %s\n", what, why);
}

static char *read_script(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &status) || status.st_size > SCRIPT_MAX) {
        complain(path, strerror(fd < 0 ? errno : EFBIG));
        exit(127);
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    char *text = malloc(status.st_size + 1);
    size_t used = 0;
    ssize_t got;
    while (text && used < status.st_size && (got = read(fd, text + used, status.st_size - used)) > 0)
        used += got;
    close(fd);
    if (!text)
        exit(2);
    text[used] = 0;
    return text;
}

static volatile sig_atomic_t interrupted;

static void note_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

/* Adds a line of standard input. Returns 1, 0 at the end, or -1 after an interrupt. */
static int read_line(char **text, size_t *used, size_t *size)
{
    char c;
    for (;;) {
        if (*used + 2 > *size) {
            *size = *size ? 2 * *size : 256;
            *text = realloc(*text, *size);
            if (!*text)
                exit(2);
        }
        ssize_t got = read(0, &c, 1);
        if (got < 0 && errno == EINTR) {
            if (interrupted)
                return -1;
            continue;
        }
        if (got <= 0)
            return 0;
        if (!c)
            continue;
        (*text)[(*used)++] = c;
        (*text)[*used] = 0;
        if (c == '\n')
            return 1;
    }
}

/* Adds a line that is typed to the text. Returns as read_line. */
static int edit_input(char **text, size_t *used, size_t *size)
{
    const char *name = *used ? "PS2" : "PS1", *value = variable(name), *line;
    struct mark mark = memory_mark();
    int result = edit_line(expand_here(value ? value : *used ? "> " : "$PWD # "), &line);
    memory_release(mark);
    if (result != EDIT_LINE)
        return result == EDIT_INTERRUPTED ? -1 : 0;
    size_t length = strlen(line);
    if (*used + length + 2 > *size) {
        *size = *used + length + 256;
        *text = realloc(*text, *size);
        if (!*text)
            exit(2);
    }
    memcpy(*text + *used, line, length);
    *used += length;
    (*text)[(*used)++] = '\n';
    (*text)[*used] = 0;
    return 1;
}

/* Executes what has been read as far as it is complete. Returns whether more is needed first. */
static int run_lines(char *text)
{
    size_t at = 0;
    for (;;) {
        struct command *command;
        struct mark mark = memory_mark();
        enum parsed parsed = parse(text, &at, &command);
        if (parsed == PARSED)
            execute(command);
        if (parsed == PARSED_WRONG)
            last_status = 2;
        memory_release(mark);
        break_levels = continue_levels = returning = 0;
        if (parsed != PARSED)
            return parsed == PARSED_INCOMPLETE;
    }
}

/* Commands from standard input, line by line: what they read themselves lies behind them. */
static void run_input(void)
{
    char *text = NULL;
    size_t used = 0, size = 0;
    for (;;) {
        interrupted = 0;
        int got = is_interactive ? edit_input(&text, &used, &size) : read_line(&text, &used, &size);
        if (got < 0) {
            used = 0;
            continue;
        }
        if (used && !run_lines(text))
            used = 0;
        else if (got == 0 && used)
            complain("syntax error", "the input ends too early");
        if (got == 0)
            break;
    }
    free(text);
}

/* The terminal's signals are for the programs in the foreground. */
static void be_interactive(void)
{
    struct sigaction action = {.sa_handler = note_interrupt};
    is_interactive = 1;
    sigaction(SIGINT, &action, NULL);
    signal(SIGQUIT, SIG_IGN);
    signal(SIGTSTP, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    setpgid(0, 0);
    give_terminal(getpid());
}

static void start_variables(void)
{
    char path[1024];
    variables_take(environ);
    if (!variable("PATH"))
        variable_set("PATH", "/bin:/sbin:/usr/bin", 1);
    if (getcwd(path, sizeof path))
        variable_set("PWD", path, 1);
    variable_set("IFS", " \t\n", 0);
}

int main(int argc, char **argv)
{
    int i = 1;
    const char *command = NULL;
    shell_pid = getpid();
    start_variables();
    for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
        for (const char *option = argv[i] + 1; *option; option++) {
            option_exit |= *option == 'e';
            option_trace |= *option == 'x';
            option_unset |= *option == 'u';
            if (*option == 'c' && i + 1 < argc && !command)
                command = argv[i + 1];
        }
        if (command) {
            i += 2;
            break;
        }
    }
    if (i < argc)
        shell_name = argv[i];
    const char *script = !command && i < argc ? argv[i] : NULL;
    parameters = argv + (i < argc ? i + 1 : i);
    parameter_count = i < argc ? argc - i - 1 : 0;
    if (command)
        run_text(command);
    else if (script)
        run_text(read_script(script));
    else {
        if (isatty(0))
            be_interactive();
        run_input();
    }
    return last_status;
}
