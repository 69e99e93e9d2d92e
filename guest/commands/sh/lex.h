/* Words and operators of the text that is being parsed. */

#ifndef LEX_H
#define LEX_H

#include <setjmp.h>
#include <stddef.h>

struct here {
    struct here *next;
    struct redirection *redirection;
    char *end;
    int strip;
};

extern const char *text;
extern size_t at;
extern struct here *heres;     /* documents that begin behind this line */
extern jmp_buf escape;         /* to parse(), with the result */

void incomplete(void);
void wrong(const char *why);
void skip_blanks(void);
void new_line(void);
void skip_lines(void);
int is_operator(char c);
char *read_word(void);         /* as it is written, or NULL */
int take_word(const char *word);
int take_operator(const char *operator);
void need_word(const char *word);

#endif
