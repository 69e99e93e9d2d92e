/* Expansion of references, $x, $(NAME), $(NAME:A=B), and of calls of functions, $(NAME ARGUMENTS). */

#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include "make.h"

#define DEPTH 100 /* of references within values of others */

struct place reading;
static int depth;

static void expand_to(struct text *to, const char *bytes, size_t length);

/* The bracket that closes the one at `at`, or `end`. */
static const char *closing(const char *at, const char *end)
{
    char opens = *at, closes = opens == '(' ? ')' : '}';
    int open = 0;
    for (; at < end; at++) {
        open += (*at == opens) - (*at == closes);
        if (open == 0)
            return at;
    }
    return end;
}

const char *skip_reference(const char *at, const char *end)
{
    if (++at == end)
        return end;
    if (*at != '(' && *at != '{')
        return at + 1;
    at = closing(at, end);
    return at == end ? end : at + 1;
}

const char *find_outside(const char *string, const char *set)
{
    const char *end = string + strlen(string);
    while (*string && !strchr(set, *string))
        string = *string == '$' ? skip_reference(string, end) : string + 1;
    return *string ? string : NULL;
}

static void expand_variable(struct text *to, struct variable *v)
{
    if (!v->recursive) {
        add_string(to, v->value);
        return;
    }
    if (v->expanding)
        fatal(&v->place, "Recursive variable '%s' references itself (eventually)", v->name);
    v->expanding = 1;
    char *value = copy(v->value, strlen(v->value)); /* $(eval) may change it */
    expand_to(to, value, strlen(value));
    free(value);
    v->expanding = 0;
}

/* $(@D), $(<F) and their like: directories or files of an automatic variable's words. */
static int expand_part_of_automatic(struct text *to, const char *name, size_t length)
{
    if (length != 2 || !strchr("@<^+?*|", name[0]) || !strchr("DF", name[1]))
        return 0;
    const struct variable *v = variable_find(name, 1);
    const char *words = v ? v->value : "", *word;
    size_t bytes, start = to->length;
    while ((word = next_word(&words, &bytes))) {
        size_t directory = directory_length(word, bytes);
        if (to->length > start)
            add(to, " ", 1);
        if (name[1] == 'F')
            add(to, word + directory, bytes - directory);
        else if (directory == 0)
            add(to, ".", 1);
        else
            add(to, word, directory > 1 ? directory - 1 : 1);
    }
    return 1;
}

static void expand_name(struct text *to, const char *name, size_t length)
{
    struct variable *v = variable_find(name, length);
    if (v)
        expand_variable(to, v);
    else
        expand_part_of_automatic(to, name, length);
}

/* $(NAME:A=B): without a '%', A and B are ends of words. */
static void expand_replaced(struct text *to, const char *name, const char *from, const char *with)
{
    struct text value = {0}, patterns[2] = {{0}, {0}}, words = {0};
    expand_name(&value, name, strlen(name));
    if (!strchr(from, '%')) {
        add_string(&patterns[0], "%");
        add_string(&patterns[1], "%");
    }
    add_string(&patterns[0], from);
    add_string(&patterns[1], with);
    words_replace(&words, finish(&value), patterns[0].bytes, patterns[1].bytes);
    add(to, finish(&words), words.length);
    free(value.bytes);
    free(words.bytes);
    free(patterns[0].bytes);
    free(patterns[1].bytes);
}

/* The inside of $(...). */
static void expand_inner(struct text *to, const char *inner, size_t length)
{
    if (function_call(to, inner, length))
        return;
    char *all = copy(inner, length), *equals = NULL, *colon = (char *)find_outside(all, ":");
    if (colon)
        equals = (char *)find_outside(colon + 1, "=");
    if (equals) {
        char *name = expand_part(all, colon - all), *from = expand_part(colon + 1, equals - colon - 1);
        char *with = expand(equals + 1);
        expand_replaced(to, name, from, with);
        free(name);
        free(from);
        free(with);
    } else {
        char *name = expand(all);
        expand_name(to, name, strlen(name));
        free(name);
    }
    free(all);
}

static void expand_to(struct text *to, const char *bytes, size_t length)
{
    const char *end = bytes + length;
    if (depth++ == DEPTH)
        fatal(&reading, "variables refer to each other too deeply");
    while (bytes < end) {
        const char *dollar = memchr(bytes, '$', end - bytes);
        add(to, bytes, (dollar ? dollar : end) - bytes);
        if (!dollar)
            break;
        bytes = skip_reference(dollar, end);
        if (bytes == dollar + 1 || dollar[1] == '$')
            add(to, "$", 1);
        else if (dollar[1] != '(' && dollar[1] != '{')
            expand_name(to, dollar + 1, 1);
        else if (closing(dollar + 1, end) == end)
            fatal(&reading, "unterminated variable reference");
        else
            expand_inner(to, dollar + 2, bytes - dollar - 3);
    }
    depth--;
}

char *expand_part(const char *bytes, size_t length)
{
    struct text text = {0};
    expand_to(&text, bytes, length);
    return finish(&text);
}

char *expand(const char *string)
{
    return expand_part(string, strlen(string));
}
