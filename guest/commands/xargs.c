/* xargs [-0rt] [-n COUNT] [-I TEXT] [COMMAND [ARGUMENT...]]: executes a command with the words of standard
   input as further arguments; with -I once for each line, which takes TEXT's place in the arguments. */

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tern/command.h>
#include <unistd.h>

#define BYTES_MAX 16384 /* of arguments, which leaves room for the environment */

static char **arguments, **given;
static int fixed, count, by_zero, trace, status;
static size_t bytes;
static const char *replaced;

static void add(char *word)
{
    arguments = need(arguments, (count + 2) * sizeof *arguments);
    arguments[count++] = word;
    arguments[count] = NULL;
}

static void note(int how)
{
    if (WIFSIGNALED(how) || (WIFEXITED(how) && WEXITSTATUS(how) == 255))
        exit(WIFSIGNALED(how) ? 125 : 124);
    if (WEXITSTATUS(how) == 126 || WEXITSTATUS(how) == 127)
        exit(WEXITSTATUS(how));
    if (WEXITSTATUS(how))
        status = 123;
}

static void execute(char **argv)
{
    int how = 0;
    for (int i = 0; trace && argv[i]; i++)
        fprintf(stderr, "%s%c", argv[i], argv[i + 1] ? ' ' : '\n');
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[0], argv);
        fprintf(stderr, "xargs: %s: %s\n", argv[0], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    if (pid < 0 || waitpid(pid, &how, 0) != pid) {
        perror("xargs");
        exit(1);
    }
    note(how);
}

static void execute_all(void)
{
    execute(arguments);
    while (count > fixed)
        free(arguments[--count]);
    arguments[count] = NULL;
    bytes = 0;
}

/* The argument with the line in each place of -I's text. */
static char *with_line(const char *argument, const char *line)
{
    size_t length = strlen(argument), cut = strlen(replaced), room = strlen(line);
    char *result = need(NULL, length + 1 + (cut ? length / cut : 0) * room), *to = result;
    while (*argument) {
        if (cut && strncmp(argument, replaced, cut) == 0) {
            to = stpcpy(to, line);
            argument += cut;
        } else {
            *to++ = *argument++;
        }
    }
    *to = 0;
    return result;
}

static void execute_for(const char *line)
{
    char **changed = need(NULL, (fixed + 1) * sizeof *changed);
    for (int i = 0; i < fixed; i++)
        changed[i] = with_line(given[i], line);
    changed[fixed] = NULL;
    execute(changed);
    for (int i = 0; i < fixed; i++)
        free(changed[i]);
    free(changed);
}

/* The next word of standard input, or NULL. Quotes and backslashes keep blanks in a word. */
static char *next_word(void)
{
    size_t used = 0, room = 0;
    char *word = NULL;
    int c, quote = 0, any = 0;
    while (!by_zero && (c = getchar()) != EOF)
        if (!isspace(c)) {
            ungetc(c, stdin);
            break;
        }
    while ((c = getchar()) != EOF && (by_zero ? c != 0 : replaced ? c != '\n' : quote || !isspace(c))) {
        any = 1;
        if (!by_zero && (quote ? c == quote : c == '"' || c == '\'')) {
            quote = quote ? 0 : c;
            continue;
        }
        if (!by_zero && !quote && c == '\\')
            c = getchar();
        if (used + 2 > room)
            word = need(word, room = 2 * room + 32);
        word[used++] = (char)c;
    }
    if (!any && (c == EOF || !by_zero))
        return NULL;
    word = need(word, used + 1);
    word[used] = 0;
    return word;
}

int main(int argc, char **argv)
{
    static char *echo[] = {"echo", NULL};
    int option, most = 0, not_empty = 0, executed = 0;
    while ((option = getopt(argc, argv, "0rtn:I:")) != -1) {
        by_zero |= option == '0';
        not_empty |= option == 'r';
        trace |= option == 't';
        if (option == 'n')
            most = atoi(optarg);
        if (option == 'I')
            replaced = optarg;
        if (option == '?' || (option == 'n' && most < 1))
            return usage("xargs [-0rt] [-n COUNT] [-I TEXT] [COMMAND [ARGUMENT...]]");
    }
    for (given = optind < argc ? argv + optind : echo; given[fixed]; fixed++)
        add(given[fixed]);
    for (char *word; (word = next_word()); executed |= replaced != NULL) {
        if (replaced) {
            execute_for(word);
            free(word);
            continue;
        }
        size_t more = strlen(word) + 1 + sizeof(char *);
        if (count > fixed && (bytes + more > BYTES_MAX || (most && count - fixed == most))) {
            execute_all();
            executed = 1;
        }
        bytes += more;
        add(word);
    }
    if (!replaced && (count > fixed || (!executed && !not_empty)))
        execute_all();
    return status;
}
