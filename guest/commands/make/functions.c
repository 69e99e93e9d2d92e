/* Functions: $(NAME ARGUMENT,ARGUMENT...). */

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include "make.h"

#define ARGUMENTS 32 /* of $(call) */

struct function {
    const char *name;
    int least, most;   /* arguments; commas behind the last one belong to it */
    int raw;           /* it expands its arguments itself */
    void (*act)(struct text *to, char **arguments, int count);
};

/* The word with this number, from 1. */
static const char *word_number(const char *words, long number, size_t *length)
{
    const char *word;
    while ((word = next_word(&words, length)) && --number > 0)
        ;
    return word;
}

static long count_words(const char *words)
{
    size_t length;
    long count = 0;
    while (next_word(&words, &length))
        count++;
    return count;
}

static void subst(struct text *to, char **a, int count)
{
    size_t length = strlen(a[0]);
    const char *s = a[2], *found;
    (void)count;
    if (!length) {
        add_string(to, s);
        add_string(to, a[1]);
        return;
    }
    for (; (found = strstr(s, a[0])); s = found + length) {
        add(to, s, found - s);
        add_string(to, a[1]);
    }
    add_string(to, s);
}

static void patsubst(struct text *to, char **a, int count)
{
    struct text words = {0};
    (void)count;
    words_replace(&words, a[2], strip(a[0]), strip(a[1]));
    add(to, finish(&words), words.length);
    free(words.bytes);
}

/* Adds a word to the words of this call, which began at `start`. */
static void more(struct text *to, size_t start, const char *word, size_t length)
{
    if (to->length > start)
        add(to, " ", 1);
    add(to, word, length);
}

static void strip_words(struct text *to, char **a, int count)
{
    const char *words = a[0], *word;
    size_t length, start = to->length;
    (void)count;
    while ((word = next_word(&words, &length)))
        more(to, start, word, length);
}

static void findstring(struct text *to, char **a, int count)
{
    (void)count;
    if (strstr(a[1], a[0]))
        add_string(to, a[0]);
}

static int matches_any(const char *patterns, const char *word, size_t length)
{
    const char *pattern;
    size_t bytes;
    int matches = 0;
    while (!matches && (pattern = next_word(&patterns, &bytes))) {
        struct stem stem;
        char *one = copy(pattern, bytes);
        matches = pattern_match(one, word, length, &stem);
        free(one);
    }
    return matches;
}

static void filter_words(struct text *to, char **a, int wanted)
{
    const char *words = a[1], *word;
    size_t length, start = to->length;
    while ((word = next_word(&words, &length)))
        if (matches_any(a[0], word, length) == wanted)
            more(to, start, word, length);
}

static void filter(struct text *to, char **a, int count)
{
    (void)count;
    filter_words(to, a, 1);
}

static void filter_out(struct text *to, char **a, int count)
{
    (void)count;
    filter_words(to, a, 0);
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort(struct text *to, char **a, int count)
{
    long words = count_words(a[0]), n = 0;
    char **sorted = need(NULL, (words + 1) * sizeof *sorted);
    const char *at = a[0], *word;
    size_t length, start = to->length;
    (void)count;
    while ((word = next_word(&at, &length)))
        sorted[n++] = copy(word, length);
    qsort(sorted, n, sizeof *sorted, compare);
    for (long i = 0; i < n; i++)
        if (i == 0 || strcmp(sorted[i], sorted[i - 1]) != 0)
            more(to, start, sorted[i], strlen(sorted[i]));
    while (n)
        free(sorted[--n]);
    free(sorted);
}

static void word(struct text *to, char **a, int count)
{
    long number = strtol(a[0], NULL, 10);
    size_t length;
    (void)count;
    if (number < 1)
        fatal(&reading, "first argument to 'word' function must be greater than 0");
    const char *found = word_number(a[1], number, &length);
    if (found)
        add(to, found, length);
}

static void words(struct text *to, char **a, int count)
{
    char number[24];
    (void)count;
    snprintf(number, sizeof number, "%ld", count_words(a[0]));
    add_string(to, number);
}

static void firstword(struct text *to, char **a, int count)
{
    size_t length;
    const char *found = word_number(a[0], 1, &length);
    (void)count;
    if (found)
        add(to, found, length);
}

static void lastword(struct text *to, char **a, int count)
{
    size_t length;
    const char *found = word_number(a[0], count_words(a[0]), &length);
    (void)count;
    if (found)
        add(to, found, length);
}

/* The length of a file's name without its suffix. */
static size_t base_length(const char *name, size_t length)
{
    size_t directory = directory_length(name, length);
    for (size_t i = length; i > directory; i--)
        if (name[i - 1] == '.')
            return i - 1;
    return length;
}

/* The part of each word that `which` names: d)irectory, f)ile, b)ase, s)uffix. */
static void parts(struct text *to, const char *names, char which)
{
    const char *name;
    size_t length, start = to->length;
    while ((name = next_word(&names, &length))) {
        size_t directory = directory_length(name, length), base = base_length(name, length);
        if (which == 'd')
            more(to, start, directory ? name : "./", directory ? directory : 2);
        else if (which == 'f')
            more(to, start, name + directory, length - directory);
        else if (which == 'b')
            more(to, start, name, base);
        else if (base < length)
            more(to, start, name + base, length - base);
    }
}

static void dir(struct text *to, char **a, int count)
{
    (void)count;
    parts(to, a[0], 'd');
}

static void notdir(struct text *to, char **a, int count)
{
    (void)count;
    parts(to, a[0], 'f');
}

static void base_name(struct text *to, char **a, int count)
{
    (void)count;
    parts(to, a[0], 'b');
}

static void suffix(struct text *to, char **a, int count)
{
    (void)count;
    parts(to, a[0], 's');
}

static void add_around(struct text *to, const char *before, const char *names, const char *after)
{
    const char *name;
    size_t length, start = to->length;
    while ((name = next_word(&names, &length))) {
        more(to, start, before, strlen(before));
        add(to, name, length);
        add_string(to, after);
    }
}

static void addprefix(struct text *to, char **a, int count)
{
    (void)count;
    add_around(to, a[0], a[1], "");
}

static void addsuffix(struct text *to, char **a, int count)
{
    (void)count;
    add_around(to, "", a[1], a[0]);
}

static void wildcard(struct text *to, char **a, int count)
{
    const char *patterns = a[0], *pattern;
    struct text found = {0};
    size_t length;
    (void)count;
    while ((pattern = next_word(&patterns, &length))) {
        char *one = copy(pattern, length);
        words_glob(&found, one);
        free(one);
    }
    add(to, finish(&found), found.length);
    free(found.bytes);
}

static void add_expanded(struct text *to, const char *raw)
{
    char *expanded = expand(raw);
    add_string(to, expanded);
    free(expanded);
}

static void foreach(struct text *to, char **a, int count)
{
    char *name = expand(a[0]), *list = expand(a[1]);
    const char *at = list, *item;
    size_t length;
    struct scope own = {.outer = scope};
    (void)count;
    scope = &own;
    for (int first = 1; (item = next_word(&at, &length)); first = 0) {
        char *value = copy(item, length);
        if (!first)
            add(to, " ", 1);
        variable_set(&own, strip(name), value, 0, AUTOMATIC);
        add_expanded(to, a[2]);
        free(value);
    }
    scope = own.outer;
    scope_empty(&own);
    free(name);
    free(list);
}

static void if_then(struct text *to, char **a, int count)
{
    char *condition = expand(strip(a[0]));
    if (*condition)
        add_expanded(to, a[1]);
    else if (count > 2)
        add_expanded(to, a[2]);
    free(condition);
}

/* The first argument that is not empty, or is empty if `wanted` is 0, or else the last one. */
static void choose(struct text *to, char **a, int count, int wanted)
{
    for (int i = 0; i < count; i++) {
        char *value = expand(strip(a[i]));
        int chosen = (*value != 0) == wanted || i == count - 1;
        if (chosen)
            add_string(to, value);
        free(value);
        if (chosen)
            return;
    }
}

static void or(struct text *to, char **a, int count)
{
    choose(to, a, count, 1);
}

static void and(struct text *to, char **a, int count)
{
    choose(to, a, count, 0);
}

static void call(struct text *to, char **a, int count)
{
    struct scope own = {.outer = scope};
    char number[12];
    const char *name = strip(a[0]);
    struct variable *v = variable_find(name, strlen(name));
    if (!v)
        return;
    /* Those of an outer call are not seen. */
    for (int i = 0; i < ARGUMENTS; i++) {
        snprintf(number, sizeof number, "%d", i);
        if (i < count || variable_find(number, strlen(number)))
            variable_set(&own, number, i < count ? a[i] : "", 0, AUTOMATIC);
    }
    scope = &own;
    /* It may call itself. */
    char *value = copy(v->value, strlen(v->value));
    if (v->recursive)
        add_expanded(to, value);
    else
        add_string(to, value);
    free(value);
    scope = own.outer;
    scope_empty(&own);
}

static void eval(struct text *to, char **a, int count)
{
    struct scope *before = scope;
    (void)to;
    (void)count;
    scope = &global;
    makefile_read_text(a[0], strlen(a[0]), reading);
    scope = before;
}

static void shell(struct text *to, char **a, int count)
{
    struct text output = {0};
    char buffer[512];
    size_t bytes;
    (void)count;
    FILE *from = popen(a[0], "r");
    if (!from)
        fatal(&reading, "a shell cannot be started");
    while ((bytes = fread(buffer, 1, sizeof buffer, from)) > 0)
        add(&output, buffer, bytes);
    pclose(from);
    while (output.length && output.bytes[output.length - 1] == '\n')
        output.length--;
    for (size_t i = 0; i < output.length; i++)
        add(to, output.bytes[i] == '\n' ? " " : output.bytes + i, 1);
    free(output.bytes);
}

static void info(struct text *to, char **a, int count)
{
    (void)to;
    (void)count;
    puts(a[0]);
}

static void warning(struct text *to, char **a, int count)
{
    (void)to;
    (void)count;
    fflush(stdout);
    fprintf(stderr, "%s:%d: %s\n", reading.file, reading.line, a[0]);
}

static void error(struct text *to, char **a, int count)
{
    (void)to;
    (void)count;
    fatal(&reading, "%s", a[0]);
}

static const struct function functions[] = {
    {"addprefix", 2, 2, 0, addprefix}, {"addsuffix", 2, 2, 0, addsuffix}, {"and", 1, ARGUMENTS, 1, and},
    {"basename", 1, 1, 0, base_name}, {"call", 1, ARGUMENTS, 0, call}, {"dir", 1, 1, 0, dir},
    {"error", 1, 1, 0, error}, {"eval", 1, 1, 0, eval}, {"filter", 2, 2, 0, filter},
    {"filter-out", 2, 2, 0, filter_out}, {"findstring", 2, 2, 0, findstring},
    {"firstword", 1, 1, 0, firstword}, {"foreach", 3, 3, 1, foreach}, {"if", 2, 3, 1, if_then},
    {"info", 1, 1, 0, info}, {"lastword", 1, 1, 0, lastword}, {"notdir", 1, 1, 0, notdir},
    {"or", 1, ARGUMENTS, 1, or}, {"patsubst", 3, 3, 0, patsubst}, {"shell", 1, 1, 0, shell},
    {"sort", 1, 1, 0, sort}, {"strip", 1, 1, 0, strip_words}, {"subst", 3, 3, 0, subst},
    {"suffix", 1, 1, 0, suffix}, {"warning", 1, 1, 0, warning}, {"wildcard", 1, 1, 0, wildcard},
    {"word", 2, 2, 0, word}, {"words", 1, 1, 0, words},
};

static const struct function *function_named(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strlen(functions[i].name) == length && memcmp(functions[i].name, name, length) == 0)
            return &functions[i];
    return NULL;
}

/* The comma that ends the argument, or `end`. Commas within brackets belong to it. */
static const char *argument_end(const char *at, const char *end)
{
    int round = 0, curly = 0;
    for (; at < end; at++) {
        round += (*at == '(') - (*at == ')');
        curly += (*at == '{') - (*at == '}');
        if (*at == ',' && round <= 0 && curly <= 0)
            break;
    }
    return at;
}

int function_call(struct text *to, const char *inner, size_t length)
{
    const char *end = inner + length, *at = inner;
    char *arguments[ARGUMENTS];
    int count = 0;
    while (at < end && !isspace((unsigned char)*at))
        at++;
    const struct function *function = function_named(inner, at - inner);
    if (!function || at == end)
        return 0;
    while (at < end && isspace((unsigned char)*at))
        at++;
    for (int last = 0; !last; at++) {
        const char *comma = count + 1 == function->most ? end : argument_end(at, end);
        last = comma == end;
        arguments[count++] = function->raw ? copy(at, comma - at) : expand_part(at, comma - at);
        at = comma;
    }
    if (count < function->least)
        fatal(&reading, "insufficient number of arguments (%d) to function '%s'", count, function->name);
    function->act(to, arguments, count);
    while (count)
        free(arguments[--count]);
    return 1;
}
