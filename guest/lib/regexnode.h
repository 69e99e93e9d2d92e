/* Regular expressions from inside: programs for a matcher. Jumps are relative, so that parts can be moved. */

#ifndef LIB_REGEX_H
#define LIB_REGEX_H

#define REGEX_GROUPS 10      /* with the whole match as the first */
#define REGEX_NODES_MAX 8192

enum regex_operation {
    REGEX_CHARACTER,         /* a */
    REGEX_ANY,
    REGEX_SET,
    REGEX_START,             /* ^ */
    REGEX_END,               /* $ */
    REGEX_WORD,              /* \< (a 0), \> (a 1), \b (a 2) */
    REGEX_SAVE,              /* the place, in slot a */
    REGEX_SPLIT,             /* go on at a; if that fails, at b */
    REGEX_JUMP,              /* a */
    REGEX_BACK,              /* the text of group a again */
    REGEX_MATCH
};

struct regex_node {
    short operation;
    short a, b;
    unsigned char set[32];
};

#endif
