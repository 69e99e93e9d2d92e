/* The shell: what its files share. Its language is POSIX's (Shell & Utilities, chapter 2), without trap,
   getopts and aliases. */

#ifndef SH_H
#define SH_H

#include <stddef.h>
#include <sys/types.h>

/* Redirections: kinds by their operators. */
enum redirection_kind { FROM, TO, APPEND_TO, BOTH, DUP_FROM, DUP_TO, HERE };

struct redirection {
    struct redirection *next;
    enum redirection_kind kind;
    int fd;
    char *word;                /* a file, a descriptor, or the text of a here-document */
    int literal;               /* here-document: nothing is expanded in it */
};

struct word {
    struct word *next;
    char *text;                /* as written: quotes and $ are still in it */
};

enum command_kind { SIMPLE, PIPELINE, AND, OR, SEQUENCE, BACKGROUND, IF, WHILE, UNTIL, FOR, CASE, GROUP,
                    SUBSHELL, FUNCTION };

struct arm {                   /* of a case */
    struct arm *next;
    struct word *patterns;
    struct command *body;
};

struct command {
    enum command_kind kind;
    struct command *next;      /* of a pipeline */
    struct command *first, *second, *third;
    struct word *words, *assignments;
    struct redirection *redirections;
    struct arm *arms;
    char *name;                /* of a for's variable or a function */
    int negated, has_list;
};

/* parse.c. Text is parsed command by command: *at moves on. What is returned lives until memory_reset. */
enum parsed { PARSED, PARSED_NOTHING, PARSED_INCOMPLETE, PARSED_WRONG };
enum parsed parse(const char *text, size_t *at, struct command **command);

/* memory.c: memory of commands and expansions, freed all at once. */
struct mark { void *block; size_t used; };
void *allocate(size_t bytes);
char *copy_text(const char *text, size_t bytes);
struct mark memory_mark(void);
void memory_release(struct mark mark);

struct buffer {
    char *text;
    size_t used, size;
};
void put(struct buffer *buffer, char c);
void put_text(struct buffer *buffer, const char *text);
char *buffer_text(struct buffer *buffer); /* ends it with a 0 */

/* variables.c */
const char *variable(const char *name);  /* NULL: it is not set */
int variable_set(const char *name, const char *value, int exported);
void variable_unset(const char *name);
void variable_export(const char *name);
void variables_take(char **environment);
char **variables_environment(void);
void variables_print(int exported_only);
int is_name(const char *text, size_t bytes);

extern char **parameters;      /* $1 and so on, NULL behind the last */
extern int parameter_count, last_status, is_interactive, option_exit, option_trace, option_unset;
extern const char *shell_name;
extern pid_t shell_pid, last_background;

/* expand.c */
char **expand_words(const struct word *words, int *count);
char *expand_text(const char *text);     /* one word, no fields and no files: assignments and the like */
char *expand_pattern(const char *text);  /* the same for fnmatch: quoted characters are escaped */
char *expand_here(const char *text);

/* arithmetic.c */
long evaluate(const char *text);

/* redirect.c */
#define SAVED_MAX 10

struct saved {
    int fd, copy;              /* copy -1: it was closed */
};

int redirect_all(const struct redirection *redirections, struct saved *saved, int *count);
void put_back(struct saved *saved, int count);

/* keep.c: a function stays when the memory of its line is freed: its commands are copied. */
struct command *keep_command(const struct command *command);

/* execute.c */
int execute(struct command *command);
int run_text(const char *text);
char *substitute(const char *text);      /* the output of a command */
int flow_pending(void);                  /* break, continue or return is under way */

/* builtins.c */
typedef int builtin(int argc, char **argv);
builtin *find_builtin(const char *name);
int is_special(const char *name);
extern int break_levels, continue_levels, returning;

/* jobs.c */
int wait_for(pid_t pid, const char *text);
void give_terminal(pid_t group);
int continue_job(int number, int foreground);
void list_jobs(void);
void add_job(pid_t pid, const char *text, int stopped);

void complain(const char *what, const char *why);

#endif
