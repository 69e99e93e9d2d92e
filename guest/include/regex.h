/* Regular expressions, basic and extended. */

#ifndef REGEX_H
#define REGEX_H

#include <sys/types.h>

#define REG_EXTENDED 1
#define REG_ICASE 2
#define REG_NOSUB 4
#define REG_NEWLINE 8
#define REG_NOTBOL 1
#define REG_NOTEOL 2

#define REG_NOMATCH 1
#define REG_BADPAT 2
#define REG_EPAREN 8
#define REG_EBRACK 7
#define REG_BADBR 10
#define REG_ESPACE 12

typedef int regoff_t;

typedef struct {
    regoff_t rm_so, rm_eo;
} regmatch_t;

typedef struct {
    size_t re_nsub;
    int flags;
    struct regex_node *nodes;
    int used, room, start;
} regex_t;

int regcomp(regex_t *regex, const char *pattern, int flags);
int regexec(const regex_t *regex, const char *s, size_t matches, regmatch_t match[], int flags);
size_t regerror(int error, const regex_t *regex, char *to, size_t bytes);
void regfree(regex_t *regex);

#endif
