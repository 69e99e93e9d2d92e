/* Execution of commands. */

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "sh.h"

#define PIPELINE_MAX 64        /* processes of a pipeline that are waited for */
#define CALLS_MAX 200          /* functions within functions */


static struct function_body {
    struct function_body *next;
    char *name;
    struct command *body;
} *functions;

static int calls;

int flow_pending(void)
{
    return break_levels || continue_levels || returning;
}

static struct function_body *find_function(const char *name)
{
    struct function_body *f = functions;
    while (f && strcmp(f->name, name))
        f = f->next;
    return f;
}

/* In a child: what the shell ignores or handles is as usual again. */
static void become_child(int own_group, int foreground)
{
    static const int signals[] = {SIGINT, SIGQUIT, SIGTSTP, SIGTERM};
    if (is_interactive && own_group) {
        setpgid(0, 0);
        if (foreground)
            give_terminal(getpid());
    }
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], SIG_DFL);
    is_interactive = 0;
}

static pid_t start_child(int foreground)
{
    fflush(stdout);
    fflush(stderr);
    pid_t pid = fork();
    if (pid < 0)
        complain("fork", strerror(errno));
    if (pid == 0)
        become_child(1, foreground);
    else if (pid > 0 && is_interactive)
        setpgid(pid, pid);
    return pid;
}

static void assign_all(const struct word *assignments, int exported)
{
    for (; assignments; assignments = assignments->next) {
        const char *equals = strchr(assignments->text, '=');
        char *name = copy_text(assignments->text, equals - assignments->text);
        variable_set(name, expand_text(equals + 1), exported);
    }
}

static void execute_program(char **argv)
{
    environ = variables_environment();
    if (variable("PATH"))
        setenv("PATH", variable("PATH"), 1);
    execvp(argv[0], argv);
    int error = errno;
    complain(argv[0], error == ENOENT ? "not found" : strerror(error));
    exit(error == ENOENT ? 127 : 126);
}

static void trace(char **argv)
{
    fputc('+', stderr);
    for (; *argv; argv++)
        fprintf(stderr, " %s", *argv);
    fputc('\n', stderr);
}

/* What it prints must be written before the next command. */
static int call_builtin(int argc, char **argv)
{
    int status = find_builtin(argv[0])(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "sh: %s: standard output: %s\n", argv[0], strerror(errno));
    clearerr(stdout);
    return 1;
}

static int call_function(struct function_body *f, int argc, char **argv)
{
    char **old = parameters;
    int old_count = parameter_count, status;
    if (calls == CALLS_MAX) {
        complain(argv[0], "too many calls within each other");
        return 2;
    }
    calls++;
    parameters = argv + 1;
    parameter_count = argc - 1;
    status = execute(f->body);
    if (returning)
        status = last_status;
    returning = 0;
    parameters = old;
    parameter_count = old_count;
    calls--;
    return status;
}

/* Builtins and functions run in the shell itself. */
static int execute_inside(struct command *command, int argc, char **argv)
{
    struct saved saved[SAVED_MAX];
    struct function_body *f = find_function(argv[0]);
    int count = 0, status = 1;
    /* exec's redirections stay. */
    int keep = strcmp(argv[0], "exec") == 0;
    if (redirect_all(command->redirections, keep ? NULL : saved, &count) == 0) {
        assign_all(command->assignments, 0);
        status = f ? call_function(f, argc, argv) : call_builtin(argc, argv);
    }
    if (!keep)
        put_back(saved, count);
    return status;
}

static int has_substituted; /* a command in a word was executed */

static int execute_simple(struct command *command)
{
    int argc;
    char **argv = expand_words(command->words, &argc);
    if (argc && option_trace)
        trace(argv);
    if (argc == 0) {
        struct saved saved[SAVED_MAX];
        int count = 0;
        int status = redirect_all(command->redirections, saved, &count) ? 1 : 0;
        put_back(saved, count);
        int before = last_status; /* which values may name as $? */
        has_substituted = 0;
        assign_all(command->assignments, 0);
        /* That of a command in a value, or of an error in it. */
        int of_values = has_substituted || last_status != before ? last_status : 0;
        return status ? status : of_values;
    }
    if (find_function(argv[0]) || find_builtin(argv[0]))
        return execute_inside(command, argc, argv);
    pid_t pid = start_child(1);
    if (pid == 0) {
        if (redirect_all(command->redirections, NULL, NULL))
            exit(1);
        assign_all(command->assignments, 1);
        execute_program(argv);
    }
    return pid < 0 ? 1 : wait_for(pid, argv[0]);
}

/* The last command of a child: a program takes the child's place. */
static void execute_and_exit(struct command *command)
{
    if (command->kind == SIMPLE) {
        int argc;
        char **argv = expand_words(command->words, &argc);
        if (argc && !find_function(argv[0]) && !find_builtin(argv[0])) {
            if (redirect_all(command->redirections, NULL, NULL))
                exit(1);
            assign_all(command->assignments, 1);
            execute_program(argv);
        }
        int status = argc ? execute_inside(command, argc, argv) : execute_simple(command);
        exit(status);
    }
    exit(execute(command));
}

static int execute_pipeline(struct command *pipeline)
{
    pid_t last = -1, group = 0, pids[PIPELINE_MAX];
    int from = -1, fds[2] = {-1, -1}, started = 0, status;
    if (!pipeline->first->next) {
        status = execute(pipeline->first);
        return pipeline->negated ? !status : status;
    }
    fflush(stdout);
    for (struct command *command = pipeline->first; command; command = command->next) {
        if (command->next && pipe(fds)) {
            complain("pipe", strerror(errno));
            break;
        }
        last = fork();
        if (last == 0) {
            int interactive = is_interactive;
            if (interactive) {
                setpgid(0, group);
                if (!group)
                    give_terminal(getpid());
            }
            become_child(0, 0);
            if (from >= 0)
                dup2(from, 0), close(from);
            if (command->next)
                dup2(fds[1], 1), close(fds[0]), close(fds[1]);
            execute_and_exit(command);
        }
        if (last < 0)
            complain("fork", strerror(errno));
        else if (is_interactive)
            setpgid(last, group ? group : last);
        if (!group)
            group = last;
        if (last > 0 && started < PIPELINE_MAX)
            pids[started++] = last;
        if (from >= 0)
            close(from);
        from = command->next ? fds[0] : -1;
        if (command->next)
            close(fds[1]);
    }
    if (from >= 0)
        close(from);
    status = last > 0 ? wait_for(last, "pipeline") : 1;
    for (int i = 0; i + 1 < started; i++)
        wait_for(pids[i], NULL);
    return pipeline->negated ? !status : status;
}

static int execute_background(struct command *command)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int interactive = is_interactive;
        if (interactive)
            setpgid(0, 0);
        become_child(0, 0);
        if (!interactive) {
            int null = open("/dev/null", O_RDONLY);
            if (null > 0)
                dup2(null, 0), close(null);
            signal(SIGINT, SIG_IGN);
        }
        execute_and_exit(command->first);
    }
    if (pid < 0) {
        complain("fork", strerror(errno));
        return 1;
    }
    if (is_interactive)
        setpgid(pid, pid);
    last_background = pid;
    add_job(pid, command->first->words ? command->first->words->text : "(command)", 0);
    return 0;
}

/* Whether a loop goes on after its body. */
static int loop_goes_on(void)
{
    if (break_levels) {
        break_levels--;
        return 0;
    }
    if (continue_levels && --continue_levels)
        return 0;
    return !returning;
}

static int execute_while(struct command *command)
{
    int status = 0;
    for (;;) {
        struct mark mark = memory_mark();
        int condition = execute(command->first) == 0;
        if (flow_pending() || condition != (command->kind == WHILE)) {
            loop_goes_on();
            break;
        }
        status = execute(command->second);
        memory_release(mark);
        if (!loop_goes_on())
            break;
    }
    return status;
}

static int execute_for(struct command *command)
{
    int count = parameter_count, status = 0;
    char **values = command->has_list ? expand_words(command->words, &count) : parameters;
    for (int i = 0; i < count; i++) {
        struct mark mark = memory_mark();
        variable_set(command->name, values[i], 0);
        status = execute(command->second);
        memory_release(mark);
        if (!loop_goes_on())
            break;
    }
    return status;
}

static int execute_case(struct command *command)
{
    char *word = expand_text(command->words->text);
    for (struct arm *arm = command->arms; arm; arm = arm->next)
        for (struct word *pattern = arm->patterns; pattern; pattern = pattern->next)
            if (fnmatch(expand_pattern(pattern->text), word, 0) == 0)
                return arm->body ? execute(arm->body) : 0;
    return 0;
}

static int define(struct command *command)
{
    struct function_body *f = find_function(command->name);
    if (!f) {
        f = calloc(1, sizeof *f);
        if (!f || !(f->name = strdup(command->name)))
            exit(2);
        f->next = functions;
        functions = f;
    }
    /* The old body may be executing right now: it is not freed. */
    f->body = keep_command(command->first);
    return 0;
}

static int execute_compound(struct command *command)
{
    int status;
    pid_t pid;
    switch (command->kind) {
    case IF:
        status = execute(command->first);
        if (flow_pending())
            return status;
        if (status == 0)
            return execute(command->second);
        return command->third ? execute(command->third) : 0;
    case WHILE:
    case UNTIL:
        return execute_while(command);
    case FOR:
        return execute_for(command);
    case CASE:
        return execute_case(command);
    case GROUP:
        return execute(command->first);
    default: /* SUBSHELL */
        pid = start_child(1);
        if (pid == 0)
            execute_and_exit(command->first);
        return pid < 0 ? 1 : wait_for(pid, "(subshell)");
    }
}

static int with_redirections(struct command *command)
{
    struct saved saved[SAVED_MAX];
    int count = 0, status = 1;
    if (redirect_all(command->redirections, saved, &count) == 0)
        status = execute_compound(command);
    put_back(saved, count);
    return status;
}

/* Commands whose failure ends the shell under `set -e`. */
static void check_failure(const struct command *command, int status)
{
    if (option_exit == 1 && status && (command->kind == SIMPLE || command->kind == SUBSHELL ||
                                       (command->kind == PIPELINE && !command->negated)))
        exit(status);
}

int execute(struct command *command)
{
    int status, saved = option_exit;
    switch (command->kind) {
    case SIMPLE:
        status = execute_simple(command);
        break;
    case PIPELINE:
        status = execute_pipeline(command);
        break;
    case AND:
    case OR:
        option_exit = option_exit ? 2 : 0; /* a condition */
        status = execute(command->first);
        option_exit = saved;
        if (!flow_pending() && (status == 0) == (command->kind == AND))
            status = execute(command->second);
        break;
    case SEQUENCE:
        status = execute(command->first);
        if (!flow_pending())
            status = execute(command->second);
        break;
    case BACKGROUND:
        status = execute_background(command);
        break;
    case FUNCTION:
        status = define(command);
        break;
    default:
        if (command->kind == IF || command->kind == WHILE || command->kind == UNTIL)
            option_exit = option_exit ? 2 : 0;
        status = with_redirections(command);
        option_exit = saved;
        break;
    }
    last_status = returning ? last_status : status;
    check_failure(command, status);
    return last_status;
}

int run_text(const char *text)
{
    size_t at = 0;
    for (;;) {
        struct command *command;
        struct mark mark = memory_mark();
        enum parsed parsed = parse(text, &at, &command);
        if (parsed == PARSED)
            execute(command);
        else if (parsed == PARSED_INCOMPLETE)
            complain("syntax error", "the text ends too early");
        if (parsed == PARSED_INCOMPLETE || parsed == PARSED_WRONG)
            last_status = 2;
        memory_release(mark);
        if (parsed != PARSED || flow_pending())
            return last_status;
    }
}

char *substitute(const char *text)
{
    struct buffer output = {0};
    char part[512];
    int fds[2], got;
    if (pipe(fds)) {
        complain("pipe", strerror(errno));
        return copy_text("", 0);
    }
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        become_child(0, 0);
        dup2(fds[1], 1);
        close(fds[0]);
        close(fds[1]);
        exit(run_text(text));
    }
    close(fds[1]);
    while (pid > 0 && ((got = read(fds[0], part, sizeof part)) > 0 || (got < 0 && errno == EINTR)))
        for (int i = 0; i < got; i++)
            if (part[i])
                put(&output, part[i]);
    close(fds[0]);
    last_status = pid > 0 ? wait_for(pid, NULL) : 1;
    has_substituted = 1;
    return buffer_text(&output);
}
