/* The parts of diff. */

#ifndef DIFF_H
#define DIFF_H

struct lines {
    char **line;               /* with their newlines */
    char *changed;             /* whether the other file lacks the line */
    int count, without_newline;
};

/* Finds the fewest lines to take out of `a` and to put in from `b`. */
void compare(struct lines *a, struct lines *b);

#endif
