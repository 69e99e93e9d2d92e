/* The parts of sed. */

#ifndef SED_H
#define SED_H

#include <regex.h>
#include <stddef.h>
#include <stdio.h>

/* A string that grows. */
struct text {
    char *bytes;               /* ends with a 0 */
    size_t used, room;
};

void text_add(struct text *text, const char *bytes, size_t count);
void text_clear(struct text *text);

enum address_kind { NO_ADDRESS, LINE, LAST, PATTERN, MORE_LINES };

struct address {
    enum address_kind kind;
    unsigned long line;
    regex_t *regex;            /* NULL: the one used last */
};

struct command {
    struct address from, to;
    char name;                 /* 0 at the end of the script */
    int negated;
    int active;                /* within the range of the two addresses */
    unsigned long last;        /* of the range, if `to` has a number */
    int target;                /* of b, t and {: the index of a command */
    char *text;                /* of a, i, c, r, y and :, and what s puts in */
    regex_t *regex;
    int global, print, which;  /* flags of s */
    FILE *file;                /* of w */
};

/* Reads a script. Ends the program if it is wrong. */
struct command *parse_script(const char *script, int regex_flags);

/* The input: lines of all files as one, or of a single one. */
void input_files(int count, char **paths);
int input_line(struct text *line, int append);     /* whether there was one */
int input_is_last(void);
int input_ended_without_newline(void);
int input_failed(void);
extern unsigned long line_number;

/* Executes the script on the input. Returns the status that q gives, or 0. */
int execute_script(struct command *script, int quiet, FILE *output);

#endif
