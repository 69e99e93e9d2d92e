/* Reads makefiles: lines, conditional parts, definitions, rules. */

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include "make.h"

#define CONDITIONS 32
#define INCLUDES 16
#define MAKEFILE_BYTES_MAX (4u << 20)

/* A conditional part: whether its lines count, whether an earlier branch did, whether `else` has come. */
struct condition {
    char active, satisfied, has_else;
};

struct reader {
    const char *at, *end;
    int line;                     /* the number of the next one */
    const char *file;
    struct condition conditions[CONDITIONS];
    int depth;
    /* The rule whose recipe is being read. */
    char *targets, *pattern, *prerequisites, *order;
    struct recipe *recipe;
};

static int includes;

/* The length of the raw line at `at`, without its end. */
static size_t raw_length(const struct reader *reader)
{
    const char *end = memchr(reader->at, '\n', reader->end - reader->at);
    return (end ? end : reader->end) - reader->at;
}

static void skip_raw(struct reader *reader, size_t length)
{
    reader->at += length + (reader->at + length < reader->end);
    reader->line++;
}

/* Whether an odd number of backslashes ends the line. */
static int continues(const char *line, size_t length)
{
    size_t backslashes = 0;
    while (backslashes < length && line[length - 1 - backslashes] == '\\')
        backslashes++;
    return backslashes & 1;
}

/* Reads a line with those that continue it. In a recipe they stay as they are, but for the tab that begins
   each; elsewhere a blank takes the place of a line's end and the blanks around it. */
static char *read_logical(struct reader *reader, int in_recipe)
{
    struct text line = {0};
    for (int more = 1; more && reader->at < reader->end;) {
        size_t length = raw_length(reader), start = 0;
        const char *raw = reader->at;
        more = continues(raw, length);
        skip_raw(reader, length);
        if (in_recipe) {
            start = length && raw[0] == '\t';
            add(&line, raw + start, length - start);
            if (more)
                add(&line, "\n", 1);
            continue;
        }
        length -= more;
        while (line.length && start < length && isblank((unsigned char)raw[start]))
            start++;
        while (more && length > start && isblank((unsigned char)raw[length - 1]))
            length--;
        add(&line, raw + start, length - start);
        if (more)
            add(&line, " ", 1);
    }
    return finish(&line);
}

static void remove_comment(char *line)
{
    char *to = line;
    for (; *line; *to++ = *line++) {
        if (line[0] == '\\' && line[1] == '#')
            line++;
        else if (*line == '#')
            break;
    }
    *to = 0;
}

/* Rules. */

static void finish_rule(struct reader *reader)
{
    if (!reader->targets)
        return;
    rule_add(reader->targets, reader->pattern, reader->prerequisites, reader->order, reader->recipe);
    free(reader->targets);
    free(reader->pattern);
    free(reader->prerequisites);
    free(reader->order);
    reader->targets = reader->pattern = reader->prerequisites = reader->order = NULL;
    reader->recipe = NULL;
}

static void add_recipe_line(struct reader *reader, const char *line, int number)
{
    if (!reader->recipe) {
        reader->recipe = need(NULL, sizeof *reader->recipe);
        *reader->recipe = (struct recipe){.place = {reader->file, number}};
    }
    struct recipe *recipe = reader->recipe;
    recipe->lines = need(recipe->lines, (recipe->count + 1) * sizeof *recipe->lines);
    recipe->numbers = need(recipe->numbers, (recipe->count + 1) * sizeof *recipe->numbers);
    recipe->lines[recipe->count] = copy(line, strlen(line));
    recipe->numbers[recipe->count++] = number;
}

/* What stands behind the colon: prerequisites, maybe behind the pattern of a static pattern rule. */
static void read_prerequisites(struct reader *reader, const char *text)
{
    char *expanded = expand(text), *rest = expanded, *bar;
    char *colon = strchr(expanded, ':');
    if (colon) {
        *colon = 0;
        reader->pattern = copy(expanded, strlen(expanded));
        rest = colon + 1;
    }
    bar = strchr(rest, '|');
    if (bar)
        *bar = 0;
    reader->prerequisites = copy(rest, strlen(rest));
    reader->order = copy(bar ? bar + 1 : "", bar ? strlen(bar + 1) : 0);
    free(expanded);
}

/* A rule, or variables of targets. `line` is changed. */
static void read_rule(struct reader *reader, char *line)
{
    struct assignment assignment;
    int number = reading.line;
    char *colon = (char *)find_outside(line, ":"), *expanded = NULL;
    if (!colon) {
        /* All of it is in a variable, or it is no rule. */
        line = expanded = expand(line);
        if (!*strip(line)) {
            free(expanded);
            return;
        }
        colon = strchr(line, ':');
        if (!colon)
            fatal(&reading, "missing separator");
    }
    *colon++ = 0;
    if (*colon == ':')
        fatal(&reading, "rules with two colons are not supported");
    char *targets = expand(line);
    if (assignment_parse(colon, &assignment)) {
        target_variable_add(targets, &assignment);
        free(targets);
        free(expanded);
        return;
    }
    char *semicolon = (char *)find_outside(colon, ";");
    if (semicolon)
        *semicolon = 0;
    reader->targets = targets;
    read_prerequisites(reader, colon);
    if (semicolon)
        add_recipe_line(reader, semicolon + 1, number);
    free(expanded);
}

/* Directives. */

/* Whether the line begins with this word; *rest is what is behind it. */
static int is_directive(const char *line, const char *word, const char **rest)
{
    size_t length = strlen(word);
    if (strncmp(line, word, length) != 0 || (line[length] && !isspace((unsigned char)line[length]) &&
        line[length] != '('))
        return 0;
    *rest = line + length;
    while (isspace((unsigned char)**rest))
        ++*rest;
    return 1;
}

/* (A,B), "A" "B" or 'A' 'B'. */
static int are_equal(const char *text)
{
    const char *first = text + 1, *second, *end, *first_end;
    if (*text == '(') {
        first_end = find_outside(first, ",");
        second = first_end ? first_end + 1 : NULL;
        end = second ? find_outside(second, ")") : NULL;
    } else {
        first_end = *text == '"' || *text == '\'' ? strchr(first, *text) : NULL;
        second = first_end ? first_end + 1 : NULL;
        while (second && isspace((unsigned char)*second))
            second++;
        end = second && (*second == '"' || *second == '\'') ? strchr(second + 1, *second) : NULL;
        second++;
    }
    if (!end)
        fatal(&reading, "invalid syntax in conditional");
    char *a = expand_part(first, first_end - first), *b = expand_part(second, end - second);
    int equal = *text == '(' ? strcmp(strip(a), strip(b)) == 0 : strcmp(a, b) == 0;
    free(a);
    free(b);
    return equal;
}

static int is_defined(const char *text)
{
    char *name = expand(text);
    const char *stripped = strip(name);
    const struct variable *v = variable_find(stripped, strlen(stripped));
    int defined = v && *v->value;
    free(name);
    return defined;
}

static int skipping(const struct reader *reader)
{
    for (int i = 0; i < reader->depth; i++)
        if (!reader->conditions[i].active)
            return 1;
    return 0;
}

/* Whether the line is the head of a conditional part; *value says whether it holds, where that counts. */
static int read_condition(const char *line, int counts, int *value)
{
    const char *rest;
    *value = 0;
    if (is_directive(line, "ifeq", &rest))
        *value = counts && are_equal(rest);
    else if (is_directive(line, "ifneq", &rest))
        *value = counts && !are_equal(rest);
    else if (is_directive(line, "ifdef", &rest))
        *value = counts && is_defined(rest);
    else if (is_directive(line, "ifndef", &rest))
        *value = counts && !is_defined(rest);
    else
        return 0;
    return 1;
}

static void read_else(struct reader *reader, const char *rest)
{
    struct condition *inner = reader->depth ? &reader->conditions[reader->depth - 1] : NULL;
    int value = 1;
    if (!inner || inner->has_else)
        fatal(&reading, inner ? "only one 'else' per conditional" : "extraneous 'else'");
    if (*rest) {
        inner->active = 1; /* those outside alone decide whether this one counts */
        if (!read_condition(rest, !inner->satisfied && !skipping(reader), &value))
            fatal(&reading, "extraneous text after 'else' directive");
    } else {
        inner->has_else = 1;
    }
    inner->active = !inner->satisfied && value;
    inner->satisfied |= inner->active;
}

/* Whether the line belongs to conditional parts. */
static int read_conditional(struct reader *reader, const char *line)
{
    const char *rest;
    int value;
    if (read_condition(line, !skipping(reader), &value)) {
        if (reader->depth == CONDITIONS)
            fatal(&reading, "conditionals are nested too deeply");
        reader->conditions[reader->depth++] = (struct condition){(char)value, (char)value, 0};
    } else if (is_directive(line, "else", &rest)) {
        read_else(reader, rest);
    } else if (is_directive(line, "endif", &rest)) {
        if (reader->depth-- == 0)
            fatal(&reading, "extraneous 'endif'");
    } else {
        return 0;
    }
    return 1;
}

/* define NAME [=], lines, endef. */
static void read_define(struct reader *reader, const char *head, int skip)
{
    struct text value = {0}, line = {0};
    struct assignment assignment;
    struct place begin = reading;
    const char *rest;
    int open = 1;
    for (;;) {
        if (reader->at == reader->end)
            fatal(&begin, "missing 'endef', unterminated 'define'");
        /* Lines that continue others become part of them, even in recipes. */
        char *raw = read_logical(reader, 0);
        const char *stripped = raw;
        while (isblank((unsigned char)*stripped))
            stripped++;
        if (raw[0] != '\t')
            open += is_directive(stripped, "define", &rest) - is_directive(stripped, "endef", &rest);
        if (open) {
            add(&value, "\n", value.bytes != NULL);
            add_string(&value, raw);
        }
        free(raw);
        if (!open)
            break;
    }
    add_string(&line, head);
    if (!assignment_parse(line.bytes, &assignment)) {
        add_string(&line, " =");
        if (!assignment_parse(line.bytes, &assignment))
            fatal(&begin, "empty variable name");
    }
    free(assignment.value);
    assignment.value = finish(&value);
    if (!skip)
        assign(&global, &assignment, MAKEFILE);
    assignment_free(&assignment);
    free(line.bytes);
}

static void read_include(const char *names, int needed)
{
    char *expanded = expand(names);
    const char *at = expanded, *name;
    size_t length;
    struct place place = reading;
    while ((name = next_word(&at, &length))) {
        struct text found = {0};
        char *path = copy(name, length);
        if (has_glob(path, length))
            words_glob(&found, path);
        else
            add_string(&found, path);
        const char *files = finish(&found), *file;
        while ((file = next_word(&files, &length))) {
            char *one = copy(file, length);
            if (makefile_read(one, 0) && needed)
                fatal(&place, "%s: %s", one, strerror(errno));
            reading = place;
            free(one);
        }
        free(found.bytes);
        free(path);
    }
    free(expanded);
}

static void read_export(const char *names, int exported)
{
    char *expanded = expand(names);
    const char *at = expanded, *name;
    size_t length;
    while ((name = next_word(&at, &length)))
        variable_export(name, length, exported);
    free(expanded);
}

static int read_directive(const char *line)
{
    const char *rest;
    if (is_directive(line, "include", &rest))
        read_include(rest, 1);
    else if (is_directive(line, "-include", &rest) || is_directive(line, "sinclude", &rest))
        read_include(rest, 0);
    else if (is_directive(line, "export", &rest))
        read_export(rest, 1);
    else if (is_directive(line, "unexport", &rest))
        read_export(rest, 0);
    else
        return 0;
    return 1;
}

/* Lines. */

/* A line that is not of a recipe; `line` is changed. */
static void read_line_of_makefile(struct reader *reader, char *line)
{
    struct assignment assignment;
    const char *rest;
    char *stripped = strip(line);
    int is_define = is_directive(stripped, "define", &rest) ||
        (is_directive(stripped, "override", &rest) && is_directive(rest, "define", &rest));
    if (is_define && !assignment_parse(stripped, &assignment)) {
        finish_rule(reader);
        read_define(reader, rest, skipping(reader));
        return;
    }
    if (is_define)
        assignment_free(&assignment);
    if (read_conditional(reader, stripped) || skipping(reader) || !*stripped)
        return;
    finish_rule(reader);
    if (assignment_parse(stripped, &assignment)) {
        assign(&global, &assignment, MAKEFILE);
        assignment_free(&assignment);
    } else if (!read_directive(stripped)) {
        read_rule(reader, stripped);
    }
}

/* A recipe's line; without a rule, what begins with a tab may be something else. */
static int read_recipe_line(struct reader *reader)
{
    struct place place = {reader->file, reader->line};
    if (!reader->targets)
        return 0;
    char *line = read_logical(reader, 1);
    if (!skipping(reader))
        add_recipe_line(reader, line, place.line);
    free(line);
    return 1;
}

void makefile_read_text(const char *text, size_t length, struct place place)
{
    struct reader reader = {.at = text, .end = text + length, .line = place.line, .file = place.file};
    struct place before = reading;
    while (reader.at < reader.end) {
        int tab = *reader.at == '\t';
        reading = (struct place){reader.file, reader.line};
        if (tab && read_recipe_line(&reader))
            continue;
        char *line = read_logical(&reader, 0);
        remove_comment(line);
        if (tab && *strip(line) && !find_outside(line, "=") && !skipping(&reader))
            fatal(&reading, "recipe commences before first target");
        read_line_of_makefile(&reader, line);
        free(line);
    }
    finish_rule(&reader);
    reading = (struct place){reader.file, reader.line};
    if (reader.depth)
        fatal(&reading, "missing 'endif'");
    reading = before;
}

int makefile_read(const char *path, int needed)
{
    struct text text = {0};
    char buffer[4096];
    size_t bytes;
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (!file && needed)
        fatal(NULL, "%s: %s", path, strerror(errno));
    if (!file)
        return 1;
    while ((bytes = fread(buffer, 1, sizeof buffer, file)) > 0 && text.length <= MAKEFILE_BYTES_MAX)
        add(&text, buffer, bytes);
    int failed = ferror(file);
    if (file != stdin)
        fclose(file);
    if (failed || text.length > MAKEFILE_BYTES_MAX || includes == INCLUDES)
        fatal(&reading, "%s: %s", path, failed ? "it cannot be read" : "it is too large, or includes itself");
    includes++;
    /* The name stays: recipes refer to it. */
    makefile_read_text(finish(&text), text.length, (struct place){copy(path, strlen(path)), 1});
    includes--;
    free(text.bytes);
    return 0;
}
