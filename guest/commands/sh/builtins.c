/* Commands of the shell itself. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "sh.h"

int break_levels, continue_levels, returning;
int wait_jobs(int argc, char **argv);
int test_command(int argc, char **argv);

#define FILE_MAX 0x100000

static int do_nothing(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return 0;
}

static int do_false(int argc, char **argv)
{
    return do_nothing(argc, argv) + 1;
}

static int number(int argc, char **argv, int otherwise)
{
    return argc > 1 ? atoi(argv[1]) : otherwise;
}

static int do_break(int argc, char **argv)
{
    break_levels = number(argc, argv, 1);
    return 0;
}

static int do_continue(int argc, char **argv)
{
    continue_levels = number(argc, argv, 1);
    return 0;
}

static int do_return(int argc, char **argv)
{
    last_status = number(argc, argv, last_status);
    returning = 1;
    return last_status;
}

static int do_exit(int argc, char **argv)
{
    exit(number(argc, argv, last_status));
}

static int do_cd(int argc, char **argv)
{
    const char *to = argc > 1 ? argv[1] : variable("HOME");
    char path[1024];
    if (to && strcmp(to, "-") == 0)
        to = variable("OLDPWD");
    if (!to || chdir(to)) {
        complain(to ? to : "cd", to ? strerror(errno) : "no directory");
        return 1;
    }
    variable_set("OLDPWD", variable("PWD") ? variable("PWD") : "/", 0);
    if (getcwd(path, sizeof path))
        variable_set("PWD", path, 0);
    return 0;
}

static int do_pwd(int argc, char **argv)
{
    char path[1024];
    (void)argc;
    (void)argv;
    if (!getcwd(path, sizeof path)) {
        complain("pwd", strerror(errno));
        return 1;
    }
    puts(path);
    return 0;
}

static int do_echo(int argc, char **argv)
{
    int first = argc > 1 && strcmp(argv[1], "-n") == 0 ? 2 : 1;
    for (int i = first; i < argc; i++)
        printf("%s%s", i > first ? " " : "", argv[i]);
    if (first == 1)
        putchar('\n');
    return 0;
}

static int do_eval(int argc, char **argv)
{
    struct buffer text = {0};
    for (int i = 1; i < argc; i++) {
        if (i > 1)
            put(&text, ' ');
        put_text(&text, argv[i]);
    }
    return argc > 1 ? run_text(buffer_text(&text)) : 0;
}

static int do_exec(int argc, char **argv)
{
    if (argc == 1)
        return 0;
    environ = variables_environment();
    execvp(argv[1], argv + 1);
    complain(argv[1], strerror(errno));
    if (!is_interactive)
        exit(errno == ENOENT ? 127 : 126);
    return 1;
}

static int do_export(int argc, char **argv)
{
    if (argc == 1 || strcmp(argv[1], "-p") == 0)
        variables_print(1);
    for (int i = 1; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        size_t length = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        if (!is_name(argv[i], length))
            continue;
        if (equals) {
            *equals = 0;
            variable_set(argv[i], equals + 1, 1);
        } else {
            variable_export(argv[i]);
        }
    }
    return 0;
}

static int do_unset(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        variable_unset(argv[i]);
    return 0;
}

static void set_option(char option, int on)
{
    if (option == 'e')
        option_exit = on;
    else if (option == 'x')
        option_trace = on;
    else if (option == 'u')
        option_unset = on;
}

/* Positional parameters outlive the memory of this command. */
static void set_parameters(int count, char **values)
{
    char **copy = calloc(count + 1, sizeof *copy);
    if (!copy)
        exit(2);
    for (int i = 0; i < count; i++)
        if (!(copy[i] = strdup(values[i])))
            exit(2);
    parameters = copy;
    parameter_count = count;
}

static int do_set(int argc, char **argv)
{
    int i = 1;
    if (argc == 1)
        variables_print(0);
    for (; i < argc && (argv[i][0] == '-' || argv[i][0] == '+') && argv[i][1]; i++) {
        if (strcmp(argv[i], "--") == 0) {
            set_parameters(argc - i - 1, argv + i + 1);
            return 0;
        }
        for (const char *option = argv[i] + 1; *option; option++)
            set_option(*option, argv[i][0] == '-');
    }
    if (i < argc)
        set_parameters(argc - i, argv + i);
    return 0;
}

static int do_shift(int argc, char **argv)
{
    int count = number(argc, argv, 1);
    if (count < 0 || count > parameter_count)
        return 1;
    parameters += count;
    parameter_count -= count;
    return 0;
}

/* Reads byte by byte, as what follows the line belongs to others. */
static int read_line(struct buffer *line, int raw)
{
    char c;
    ssize_t got;
    while ((got = read(0, &c, 1)) == 1 && c != '\n') {
        if (c != '\\' || raw) {
            put(line, c);
        } else if (read(0, &c, 1) == 1 && c != '\n') {
            put(line, c);
        }
    }
    return got == 1;
}

static int do_read(int argc, char **argv)
{
    struct buffer line = {0};
    const char *separators = variable("IFS") ? variable("IFS") : " \t\n";
    int first = argc > 1 && strcmp(argv[1], "-r") == 0 ? 2 : 1;
    int complete = read_line(&line, first == 2);
    char *at = buffer_text(&line);
    for (int i = first; i < argc; i++) {
        at += strspn(at, separators);
        size_t length = i + 1 < argc ? strcspn(at, separators) : strlen(at);
        while (i + 1 == argc && length && strchr(separators, at[length - 1]))
            length--;
        variable_set(argv[i], copy_text(at, length), 0);
        at += length;
    }
    return complete ? 0 : 1;
}

/* Runs a file's commands in this shell. */
static int do_source(int argc, char **argv)
{
    struct stat status;
    int fd = argc > 1 ? open(argv[1], O_RDONLY) : -1;
    if (fd < 0 || fstat(fd, &status) || status.st_size > FILE_MAX) {
        complain(argc > 1 ? argv[1] : ".", strerror(errno));
        if (fd >= 0)
            close(fd);
        return 1;
    }
    char *text = allocate(status.st_size + 1);
    size_t used = 0;
    ssize_t got;
    while (used < status.st_size && (got = read(fd, text + used, status.st_size - used)) > 0)
        used += got;
    close(fd);
    int result = run_text(text);
    returning = 0;
    return result;
}

static int do_umask(int argc, char **argv)
{
    if (argc > 1) {
        umask(strtol(argv[1], NULL, 8));
        return 0;
    }
    mode_t mask = umask(0);
    umask(mask);
    printf("%04o\n", (unsigned)mask);
    return 0;
}

static int job_number(int argc, char **argv)
{
    return argc > 1 ? atoi(argv[1] + (argv[1][0] == '%')) : 0;
}

static int do_fg(int argc, char **argv)
{
    return continue_job(job_number(argc, argv), 1);
}

static int do_bg(int argc, char **argv)
{
    return continue_job(job_number(argc, argv), 0);
}

static int do_jobs(int argc, char **argv)
{
    list_jobs();
    return do_nothing(argc, argv);
}

static int do_type(int argc, char **argv)
{
    int result = 0;
    for (int i = 1; i < argc; i++) {
        const char *path = variable("PATH") ? variable("PATH") : "";
        char name[1024] = "";
        if (find_builtin(argv[i])) {
            printf("%s is a command of the shell\n", argv[i]);
            continue;
        }
        for (size_t length; *path; path += length + (path[length] == ':')) {
            length = strcspn(path, ":");
            snprintf(name, sizeof name, "%.*s/%s", (int)length, path, argv[i]);
            if (access(name, X_OK) == 0)
                break;
            name[0] = 0;
        }
        if (name[0])
            printf("%s is %s\n", argv[i], name);
        else
            printf("%s: not found\n", argv[i]), result = 1;
    }
    return result;
}

static const struct {
    const char *name;
    builtin *function;
} builtins[] = {
    {":", do_nothing}, {"true", do_nothing}, {"false", do_false}, {".", do_source}, {"break", do_break},
    {"continue", do_continue}, {"return", do_return}, {"exit", do_exit}, {"cd", do_cd}, {"pwd", do_pwd},
    {"echo", do_echo}, {"eval", do_eval}, {"exec", do_exec}, {"export", do_export}, {"unset", do_unset},
    {"set", do_set}, {"shift", do_shift}, {"read", do_read}, {"umask", do_umask}, {"fg", do_fg},
    {"bg", do_bg}, {"jobs", do_jobs}, {"wait", wait_jobs}, {"test", test_command}, {"[", test_command},
    {"type", do_type}};

builtin *find_builtin(const char *name)
{
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
        if (strcmp(builtins[i].name, name) == 0)
            return builtins[i].function;
    return NULL;
}
