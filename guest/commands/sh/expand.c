/* Expansion of words (POSIX, Shell & Utilities, 2.6). A word becomes characters with flags first; then it is
   split into fields, and fields with unquoted *, ? or [ become the names of files. */

#include <ctype.h>
#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "sh.h"

#define QUOTED 1
#define EXPANDED 2             /* comes from an expansion that was not quoted: it is split */
#define BREAK 4                /* no character, but the end of a field: between the words of "$@" */
#define PRESENT 8              /* no character, but makes an empty field one: quotes */

struct expansion {
    struct buffer text, flags;
};

static void add(struct expansion *e, char c, int flags)
{
    put(&e->text, c);
    put(&e->flags, flags);
}

static void add_text(struct expansion *e, const char *text, int quoted)
{
    for (; *text; text++)
        add(e, *text, quoted ? QUOTED : EXPANDED);
}

static void expand(struct expansion *e, const char *text, size_t bytes, int quoted);

static void add_parameters(struct expansion *e, int each, int quoted)
{
    const char *separators = variable("IFS");
    for (int i = 0; i < parameter_count; i++) {
        if (i && quoted && !each) {
            char c = separators ? *separators : ' ';
            if (c)
                add(e, c, QUOTED);
        } else if (i) {
            add(e, 0, BREAK);
        }
        if (quoted)
            add(e, 0, PRESENT);
        add_text(e, parameters[i], quoted);
    }
}

/* The value of a parameter other than * and @, or NULL. */
static const char *parameter(const char *name)
{
    static char number[16];
    int n = atoi(name);
    switch (*name) {
    case '?': n = last_status; break;
    case '$': n = shell_pid; break;
    case '#': n = parameter_count; break;
    case '!':
        if (!last_background)
            return NULL;
        n = last_background;
        break;
    case '-': return is_interactive ? "i" : "";
    default:
        if (!isdigit((unsigned char)*name))
            return variable(name);
        return n == 0 ? shell_name : n <= parameter_count ? parameters[n - 1] : NULL;
    }
    snprintf(number, sizeof number, "%d", n);
    return number;
}

static size_t name_length(const char *text, size_t bytes)
{
    size_t length = 0;
    if (bytes && strchr("?$#!-*@", *text))
        return 1;
    if (bytes && isdigit((unsigned char)*text)) {
        while (length < bytes && isdigit((unsigned char)text[length]))
            length++;
        return length;
    }
    while (length < bytes && (isalnum((unsigned char)text[length]) || text[length] == '_'))
        length++;
    return length;
}

/* Cuts the shortest or longest match off the start or the end of a value. */
static const char *cut(const char *value, const char *pattern, char side, int longest)
{
    size_t length = strlen(value);
    char *copy = copy_text(value, length);
    for (size_t i = 0; i <= length; i++) {
        size_t n = longest ? length - i : i;
        if (side == '#') {
            char saved = copy[n];
            copy[n] = 0;
            int matches = fnmatch(pattern, copy, 0) == 0;
            copy[n] = saved;
            if (matches)
                return copy + n;
        } else if (fnmatch(pattern, copy + length - n, 0) == 0) {
            copy[length - n] = 0;
            return copy;
        }
    }
    return value;
}

static void fail_parameter(const char *name, const char *why)
{
    complain(name, *why ? why : "is not set");
    if (!is_interactive)
        exit(1);
    last_status = 1;
}

/* ${...}: `text` is what is between the braces. */
static void expand_braces(struct expansion *e, const char *text, size_t bytes, int quoted)
{
    if (bytes > 1 && text[0] == '#') {
        char length[16], *name = copy_text(text + 1, bytes - 1);
        const char *value = parameter(name);
        snprintf(length, sizeof length, "%u", (unsigned)(value ? strlen(value) : 0));
        add_text(e, length, quoted);
        return;
    }
    size_t n = name_length(text, bytes);
    char *name = copy_text(text, n), *rest = copy_text(text + n, bytes - n);
    int colon = *rest == ':';
    char operator = rest[colon];
    char *word = operator ? rest + colon + 1 : rest + colon;
    if (operator == '\0' && (*name == '@' || *name == '*')) {
        add_parameters(e, *name == '@', quoted);
        return;
    }
    const char *value =
        *name == '@' || *name == '*' ? (parameter_count ? parameters[0] : NULL) : parameter(name);
    int has = value && (*value || !colon);
    switch (operator) {
    case 0:
        if (!value && option_unset)
            fail_parameter(name, "");
        break;
    case '-':
        if (!has) {
            expand(e, word, strlen(word), quoted);
            return;
        }
        break;
    case '+':
        if (has)
            expand(e, word, strlen(word), quoted);
        return;
    case '=':
        if (!has) {
            value = expand_text(word);
            variable_set(name, value, 0);
        }
        break;
    case '?':
        if (!has)
            fail_parameter(name, expand_text(word));
        break;
    case '%':
    case '#': {
        int longest = *word == operator;
        value = cut(value ? value : "", expand_pattern(word + longest), operator, longest);
        break;
    }
    default:
        complain(name, "bad substitution");
        return;
    }
    if (value)
        add_text(e, value, quoted);
}

/* The length of a bracketed part that begins at text[0]. */
static size_t bracket(const char *text, size_t bytes, char open, char close)
{
    int depth = 0;
    char quote = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\\' && quote != '\'') {
            i++;
        } else if (quote) {
            quote = text[i] == quote ? 0 : quote;
        } else if (text[i] == '\'' || text[i] == '"') {
            quote = text[i];
        } else if (text[i] == open) {
            depth++;
        } else if (text[i] == close && --depth == 0) {
            return i + 1;
        }
    }
    return bytes;
}

static void add_output(struct expansion *e, const char *command, int quoted)
{
    char *output = substitute(command);
    size_t length = strlen(output);
    while (length && output[length - 1] == '\n')
        length--;
    output[length] = 0;
    add_text(e, output, quoted);
}

/* What begins with $; returns how many characters it has. */
static size_t expand_dollar(struct expansion *e, const char *text, size_t bytes, int quoted)
{
    if (bytes > 2 && text[1] == '(' && text[2] == '(') {
        size_t length = bracket(text + 1, bytes - 1, '(', ')') + 1;
        char number[24];
        snprintf(number, sizeof number, "%ld",
                 evaluate(expand_text(copy_text(text + 3, length > 5 ? length - 5 : 0))));
        add_text(e, number, quoted);
        return length;
    }
    if (bytes > 1 && text[1] == '(') {
        size_t length = bracket(text + 1, bytes - 1, '(', ')') + 1;
        add_output(e, copy_text(text + 2, length - 3), quoted);
        return length;
    }
    if (bytes > 1 && text[1] == '{') {
        size_t length = bracket(text + 1, bytes - 1, '{', '}') + 1;
        expand_braces(e, text + 2, length - 3, quoted);
        return length;
    }
    size_t n = name_length(text + 1, bytes - 1);
    if (n > 1 && isdigit((unsigned char)text[1]))
        n = 1;
    if (n == 0) {
        add(e, '$', quoted ? QUOTED : 0);
        return 1;
    }
    expand_braces(e, text + 1, n, quoted);
    return n + 1;
}

static size_t expand_backquotes(struct expansion *e, const char *text, size_t bytes, int quoted)
{
    struct buffer command = {0};
    size_t i = 1;
    for (; i < bytes && text[i] != '`'; i++) {
        if (text[i] == '\\' && i + 1 < bytes && strchr("`\\$", text[i + 1]))
            i++;
        put(&command, text[i]);
    }
    add_output(e, buffer_text(&command), quoted);
    return i + 1;
}

static void expand(struct expansion *e, const char *text, size_t bytes, int quoted)
{
    for (size_t i = 0; i < bytes;) {
        char c = text[i];
        if (c == '$') {
            i += expand_dollar(e, text + i, bytes - i, quoted);
        } else if (c == '`') {
            i += expand_backquotes(e, text + i, bytes - i, quoted);
        } else if (c == '\\' && i + 1 < bytes && (!quoted || strchr("$`\"\\\n", text[i + 1]))) {
            if (text[i + 1] != '\n')
                add(e, text[i + 1], QUOTED);
            i += 2;
        } else if (c == '\'' && !quoted) {
            add(e, 0, PRESENT);
            for (i++; i < bytes && text[i] != '\''; i++)
                add(e, text[i], QUOTED);
            i++;
        } else if (c == '"' && quoted != 2) {
            /* "$@" without parameters is no field at all. */
            if (parameter_count || strncmp(text + i, "\"$@\"", 4))
                add(e, 0, PRESENT);
            size_t end = i + 1;
            while (end < bytes && text[end] != '"') {
                if (text[end] == '\\')
                    end++;
                else if (text[end] == '$' && end + 1 < bytes &&
                         (text[end + 1] == '(' || text[end + 1] == '{'))
                    end += bracket(text + end + 1, bytes - end - 1, text[end + 1],
                                   text[end + 1] == '(' ? ')' : '}');
                end++;
            }
            expand(e, text + i + 1, (end < bytes ? end : bytes) - i - 1, 1);
            i = end + 1;
        } else {
            add(e, c, quoted ? QUOTED : 0);
            i++;
        }
    }
}

static char *without_flags(const struct expansion *e, int escape)
{
    struct buffer text = {0};
    for (size_t i = 0; i < e->text.used; i++) {
        int flags = e->flags.text[i];
        if (flags & BREAK)
            put(&text, ' ');
        if (flags & (BREAK | PRESENT))
            continue;
        if (escape && flags & QUOTED && strchr("*?[]\\", e->text.text[i]))
            put(&text, '\\');
        put(&text, e->text.text[i]);
    }
    return buffer_text(&text);
}

/* ~ at the start is the home directory. */
static const char *tilde(const char *text)
{
    const char *home = variable("HOME");
    if (text[0] != '~' || (text[1] && text[1] != '/') || !home)
        return text;
    struct buffer whole = {0};
    put_text(&whole, home);
    put_text(&whole, text + 1);
    return buffer_text(&whole);
}

static char *expand_with(const char *text, int quoted, int escape)
{
    struct expansion e = {{0}, {0}};
    if (!quoted)
        text = tilde(text);
    expand(&e, text, strlen(text), quoted);
    return without_flags(&e, escape);
}

char *expand_text(const char *text)
{
    return expand_with(text, 0, 0);
}

char *expand_pattern(const char *text)
{
    return expand_with(text, 0, 1);
}

char *expand_here(const char *text)
{
    return expand_with(text, 2, 0);
}

struct fields {
    char **list;
    int count, size;
};

static void add_field(struct fields *fields, char *field)
{
    if (fields->count + 1 >= fields->size) {
        int size = fields->size ? 2 * fields->size : 16;
        char **list = allocate(size * sizeof *list);
        if (fields->count)
            memcpy(list, fields->list, fields->count * sizeof *list);
        fields->list = list;
        fields->size = size;
    }
    fields->list[fields->count++] = field;
    fields->list[fields->count] = NULL;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Adds the files that match the rest of a pattern below `path`. */
static void find_files(struct fields *fields, const char *path, const char *pattern)
{
    const char *slash = strchr(pattern, '/');
    size_t length = slash ? (size_t)(slash - pattern) : strlen(pattern);
    char *part = copy_text(pattern, length);
    DIR *directory = opendir(*path ? path : ".");
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        struct buffer found = {0};
        struct stat status;
        if ((entry->d_name[0] == '.' && part[0] != '.') || fnmatch(part, entry->d_name, 0))
            continue;
        put_text(&found, path);
        put_text(&found, entry->d_name);
        if (!slash) {
            add_field(fields, buffer_text(&found));
        } else if (stat(buffer_text(&found), &status) == 0 && S_ISDIR(status.st_mode)) {
            put(&found, '/');
            find_files(fields, buffer_text(&found), slash + 1);
        }
    }
    if (directory)
        closedir(directory);
}

/* A path's first parts without wildcards need no search. */
static void expand_files(struct fields *fields, const char *pattern, char *literal)
{
    struct fields found = {0};
    const char *slash = pattern, *start = pattern;
    struct buffer path = {0};
    while ((slash = strchr(start, '/')) && !memchr(start, '*', slash - start) &&
           !memchr(start, '?', slash - start) && !memchr(start, '[', slash - start)) {
        for (; start <= slash; start++)
            if (*start != '\\')
                put(&path, *start);
    }
    find_files(&found, buffer_text(&path), start);
    if (!found.count) {
        add_field(fields, literal);
        return;
    }
    qsort(found.list, found.count, sizeof *found.list, compare);
    for (int i = 0; i < found.count; i++)
        add_field(fields, found.list[i]);
}

static void end_field(struct fields *fields, const struct expansion *e, size_t from, size_t to)
{
    struct expansion part = {{e->text.text + from, to - from, 0}, {e->flags.text + from, to - from, 0}};
    char *literal = without_flags(&part, 0);
    for (size_t i = from; i < to; i++) {
        char c = e->text.text[i];
        if (!(e->flags.text[i] & (QUOTED | BREAK | PRESENT)) && (c == '*' || c == '?' || c == '[')) {
            expand_files(fields, without_flags(&part, 1), literal);
            return;
        }
    }
    add_field(fields, literal);
}

static void split(struct fields *fields, const struct expansion *e)
{
    const char *separators = variable("IFS");
    size_t start = 0;
    int in_field = 0;
    if (!separators)
        separators = " \t\n";
    for (size_t i = 0; i < e->text.used; i++) {
        int flags = e->flags.text[i];
        char c = e->text.text[i];
        int ends = flags & BREAK || (flags & EXPANDED && c && strchr(separators, c));
        if (!ends) {
            if (!in_field)
                start = i;
            in_field = 1;
            continue;
        }
        /* A separator that is no blank ends an empty field too. */
        if (in_field)
            end_field(fields, e, start, i);
        else if (!(flags & BREAK) && !isspace((unsigned char)c))
            add_field(fields, copy_text("", 0));
        in_field = 0;
    }
    if (in_field)
        end_field(fields, e, start, e->text.used);
}

char **expand_words(const struct word *words, int *count)
{
    struct fields fields = {0};
    for (; words; words = words->next) {
        struct expansion e = {{0}, {0}};
        const char *text = tilde(words->text);
        expand(&e, text, strlen(text), 0);
        split(&fields, &e);
    }
    *count = fields.count;
    return fields.count ? fields.list : allocate(sizeof(char *));
}
