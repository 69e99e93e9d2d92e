/* Words and operators of the text that is being parsed. */

#include <string.h>
#include "lex.h"
#include "sh.h"

const char *text;
size_t at;
struct here *heres;
jmp_buf escape;

void incomplete(void)
{
    longjmp(escape, PARSED_INCOMPLETE);
}

void wrong(const char *why)
{
    complain("syntax error", why);
    longjmp(escape, PARSED_WRONG);
}

void skip_blanks(void)
{
    for (;;) {
        if (text[at] == ' ' || text[at] == '\t')
            at++;
        else if (text[at] == '\\' && text[at + 1] == '\n')
            at += 2;
        else if (text[at] == '#')
            while (text[at] && text[at] != '\n')
                at++;
        else
            return;
    }
}

/* Reads the lines of a here-document, which end with its word. */
static void read_here(struct here *here)
{
    struct buffer document = {0};
    for (;;) {
        if (!text[at])
            incomplete();
        if (here->strip)
            while (text[at] == '\t')
                at++;
        const char *end = strchr(text + at, '\n');
        size_t bytes = end ? (size_t)(end - text - at) : strlen(text + at);
        int last = bytes == strlen(here->end) && memcmp(text + at, here->end, bytes) == 0;
        if (!last && !end)
            incomplete();
        for (size_t i = 0; i < bytes && !last; i++)
            put(&document, text[at + i]);
        at += bytes + (end != NULL);
        if (last)
            break;
        put(&document, '\n');
    }
    here->redirection->word = buffer_text(&document);
}

void new_line(void)
{
    at++;
    while (heres) {
        struct here *here = heres;
        heres = here->next;
        read_here(here);
    }
}

void skip_lines(void)
{
    for (skip_blanks(); text[at] == '\n'; skip_blanks())
        new_line();
}

int is_operator(char c)
{
    return c && strchr("|&;<>()\n", c) != NULL;
}

static void skip_quoted(char quote);

/* Behind $: a parameter, a command or arithmetic in brackets. */
static void skip_bracket(char open, char close)
{
    int depth = 0;
    do {
        char c = text[at];
        if (!c)
            incomplete();
        if (c == '\\' && text[at + 1])
            at++;
        else if (c == '\'' || c == '"' || c == '`') {
            skip_quoted(c);
            continue;
        } else if (c == open)
            depth++;
        else if (c == close)
            depth--;
        at++;
    } while (depth);
}

static void skip_dollar(void)
{
    at++;
    if (text[at] == '(')
        skip_bracket('(', ')');
    else if (text[at] == '{')
        skip_bracket('{', '}');
}

static void skip_quoted(char quote)
{
    at++;
    while (text[at] != quote) {
        if (!text[at])
            incomplete();
        if (quote == '"' && text[at] == '$') {
            skip_dollar();
            continue;
        }
        if (quote == '"' && text[at] == '`') {
            skip_quoted('`');
            continue;
        }
        if (text[at] == '\\' && quote != '\'' && text[at + 1])
            at++;
        at++;
    }
    at++;
}

/* A word as it is written, or NULL. */
char *read_word(void)
{
    skip_blanks();
    size_t start = at;
    while (text[at] && text[at] != ' ' && text[at] != '\t' && !is_operator(text[at])) {
        if (text[at] == '\'' || text[at] == '"' || text[at] == '`')
            skip_quoted(text[at]);
        else if (text[at] == '$')
            skip_dollar();
        else if (text[at] == '\\' && !text[at + 1])
            incomplete();
        else
            at += text[at] == '\\' ? 2 : 1;
    }
    return at > start ? copy_text(text + start, at - start) : NULL;
}

/* Whether the next word is this reserved one; takes it. */
int take_word(const char *word)
{
    skip_blanks();
    size_t bytes = strlen(word);
    char next = strncmp(text + at, word, bytes) == 0 ? text[at + bytes] : 'x';
    if (next && next != ' ' && next != '\t' && !is_operator(next))
        return 0;
    at += bytes;
    return 1;
}

int take_operator(const char *operator)
{
    skip_blanks();
    size_t bytes = strlen(operator);
    if (strncmp(text + at, operator, bytes))
        return 0;
    at += bytes;
    return 1;
}

void need_word(const char *word)
{
    skip_lines();
    if (take_word(word))
        return;
    if (!text[at])
        incomplete();
    wrong(word);
}
