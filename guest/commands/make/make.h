/* make: what its files share. */

#ifndef MAKE_H
#define MAKE_H

#include <stddef.h>

/* Where something stands: a makefile and the number of a line. */
struct place {
    const char *file; /* NULL: nowhere */
    int line;
};

/* text.c: a text that grows. */
struct text {
    char *bytes; /* NULL: nothing yet */
    size_t length, room;
};

void add(struct text *text, const char *bytes, size_t length);
void add_string(struct text *text, const char *string);
void add_word(struct text *text, const char *word, size_t length); /* a blank stands between words */
char *finish(struct text *text);                                   /* a string, which the caller frees */
char *copy(const char *bytes, size_t length);
/* The next word at *at, which moves behind it, or NULL. */
const char *next_word(const char **at, size_t *length);
/* The string without blanks at its ends, which is changed. */
char *strip(char *string);

/* main.c. */
extern int dry_run, go_on, ignore_errors, silent, always_make;
void say(const char *format, ...);         /* "make: ..." to standard error */
void say_plainly(const char *format, ...); /* to standard output */
void fatal(const struct place *place, const char *format, ...) __attribute__((noreturn));

/* variables.c. A value of a higher origin is not replaced by one of a lower. */
enum origin { DEFAULT, ENVIRONMENT, MAKEFILE, COMMAND_LINE, OVERRIDE, AUTOMATIC };

struct variable {
    struct variable *next;
    char *name, *value;
    enum origin origin;
    char recursive;  /* its value is expanded when it is used */
    char exported;   /* to the environment of commands */
    char expanding;  /* right now */
    struct place place; /* where it was set */
};

/* Variables of a target or of a call; `outer` are those that are seen through them. */
struct scope {
    struct variable *first;
    struct scope *outer;
};

struct assignment {
    char *name, *value; /* the name as it is written */
    char how;           /* = : + ? ! */
    char override, exported;
};

extern struct scope global, *scope; /* `scope` is the one whose variables are used now */
struct variable *variable_find(const char *name, size_t length);
void variable_set(struct scope *in, const char *name, const char *value, int recursive, enum origin origin);
void scope_empty(struct scope *which);
/* Returns whether the line is an assignment. */
int assignment_parse(const char *line, struct assignment *to);
void assignment_free(struct assignment *assignment);
void assign(struct scope *in, const struct assignment *assignment, enum origin origin);
void variable_export(const char *name, size_t length, int exported);
void environment_read(void);
void environment_write(void);

/* expand.c. The results are freed by the caller. */
extern struct place reading;           /* what is being read or executed, for messages */
char *expand(const char *string);
char *expand_part(const char *bytes, size_t length);
/* The character behind the reference that begins with the '$' at `at`. */
const char *skip_reference(const char *at, const char *end);
/* The first character of the set that is in no reference, or NULL. */
const char *find_outside(const char *string, const char *set);

/* functions.c: adds the function's result if `inner`, the inside of $(...), begins with the name of one. */
int function_call(struct text *to, const char *inner, size_t length);

/* words.c: patterns with a '%'. */
struct stem {
    const char *at;
    size_t length;
};
int pattern_match(const char *pattern, const char *word, size_t length, struct stem *stem);
/* Adds the pattern with the stem instead of its '%'. */
void pattern_fill(struct text *to, const char *pattern, size_t length, const struct stem *stem);
/* Adds the words, those that match `pattern` replaced by `with`. */
void words_replace(struct text *to, const char *words, const char *pattern, const char *with);
/* Adds the names of files that match a pattern of the shell. */
void words_glob(struct text *to, const char *pattern);
int has_glob(const char *word, size_t length);
size_t directory_length(const char *word, size_t length); /* with the slash */

/* read.c. */
int makefile_read(const char *path, int needed);
void makefile_read_text(const char *text, size_t length, struct place place);

/* files.c. */
struct recipe {
    char **lines;
    int *numbers;        /* of the lines */
    int count;
    struct place place;
};

struct file;

struct prerequisite {
    struct prerequisite *next;
    struct file *file;
    int only_order;
};

struct target_variable {
    struct target_variable *next;
    char *pattern;       /* of targets; NULL for the target that it belongs to */
    struct assignment assignment;
};

struct file {
    struct file *next;   /* with this hash */
    char *name;
    struct prerequisite *prerequisites;
    struct recipe *recipe;
    struct target_variable *variables;
    char *stem;          /* of the pattern rule */
    char is_target, phony;
    enum { UNSEEN, BUSY, DONE } state;
    char failed, changed; /* when DONE */
    char exists;
    long long time;
};

struct pattern_rule {
    struct pattern_rule *next;
    char *target, *prerequisites, *order; /* patterns; `order` behind the '|' */
    struct recipe *recipe;
    char used;           /* in the search that is going on */
};

extern struct file *default_goal;
struct file *file_find(const char *name, size_t length); /* or NULL */
struct file *file_named(const char *name, size_t length); /* which is made if it is new */
void file_look(struct file *file);                        /* at its time */
/* Adds files to the prerequisites; with `in_front` before those that are there. */
void prerequisites_add(struct file *file, const char *names, int only_order, int in_front);
/* One rule: its targets and prerequisites, expanded. `recipe` is NULL if there is none, and is kept. */
void rule_add(const char *targets, const char *pattern, const char *prerequisites, const char *order,
              struct recipe *recipe);
void target_variable_add(const char *targets, struct assignment *assignment);
extern struct target_variable *pattern_variables;
/* Gives the file the recipe and prerequisites of a pattern rule, if there is one for it. */
void pattern_rule_apply(struct file *file);
int is_special(const char *name); /* like .PHONY */
extern int delete_on_error;

/* build.c: brings the file up to date. Returns whether that failed. */
int goal_build(struct file *goal);

#endif
