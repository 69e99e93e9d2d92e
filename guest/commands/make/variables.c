/* Variables, and the scopes that they are in. */

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>
#include "make.h"

struct scope global, *scope = &global;

static struct variable *find_in(const struct scope *in, const char *name, size_t length)
{
    for (struct variable *v = in->first; v; v = v->next)
        if (strncmp(v->name, name, length) == 0 && v->name[length] == 0)
            return v;
    return NULL;
}

struct variable *variable_find(const char *name, size_t length)
{
    for (const struct scope *in = scope; in; in = in->outer) {
        struct variable *v = find_in(in, name, length);
        if (v)
            return v;
    }
    return NULL;
}

void variable_set(struct scope *in, const char *name, const char *value, int recursive, enum origin origin)
{
    struct variable *v = find_in(in, name, strlen(name));
    const struct variable *outside = in == &global ? NULL : find_in(&global, name, strlen(name));
    if ((v && v->origin > origin) || (outside && outside->origin == COMMAND_LINE && origin == MAKEFILE))
        return;
    if (!v) {
        v = need(NULL, sizeof *v);
        *v = (struct variable){.next = in->first, .name = copy(name, strlen(name))};
        in->first = v;
    }
    char *old = v->value;
    v->value = copy(value, strlen(value));
    free(old);
    v->recursive = (char)recursive;
    v->origin = origin;
    v->place = reading;
}

void scope_empty(struct scope *which)
{
    while (which->first) {
        struct variable *v = which->first;
        which->first = v->next;
        free(v->name);
        free(v->value);
        free(v);
    }
}

static const char *skip_blanks(const char *s)
{
    while (isblank((unsigned char)*s))
        s++;
    return s;
}

/* Whether the line begins with this word; *line moves behind it. */
static int takes_word(const char **line, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(*line, word, length) != 0 || !isblank((unsigned char)(*line)[length]))
        return 0;
    *line = skip_blanks(*line + length);
    return 1;
}

/* The operator at `s`: the character that stands for it in an assignment, and its length. */
static char operator_at(const char *s, size_t *length)
{
    *length = *s == '=' ? 1 : s[0] == ':' && s[1] == ':' ? 3 : 2;
    if (*s == '=')
        return '=';
    if (strchr(":+?!", *s) && *s && (s[1] == '=' || (s[0] == ':' && s[1] == ':' && s[2] == '=')))
        return *s;
    return 0;
}

int assignment_parse(const char *line, struct assignment *to)
{
    const char *s, *end = line + strlen(line), *name_end;
    size_t length;
    *to = (struct assignment){0};
    for (line = skip_blanks(line);;) {
        if (takes_word(&line, "override"))
            to->override = 1;
        else if (takes_word(&line, "export"))
            to->exported = 1;
        else
            break;
    }
    for (s = line; *s && !isblank((unsigned char)*s) && !operator_at(s, &length);) {
        if (*s == ':' || *s == '#')
            return 0;
        s = *s == '$' ? skip_reference(s, end) : s + 1;
    }
    name_end = s;
    s = skip_blanks(s);
    to->how = operator_at(s, &length);
    if (!to->how || name_end == line)
        return 0;
    to->name = copy(line, name_end - line);
    s = skip_blanks(s + length);
    to->value = copy(s, strlen(s));
    return 1;
}

void assignment_free(struct assignment *assignment)
{
    free(assignment->name);
    free(assignment->value);
}

/* What the command prints; it is expanded first. */
static char *shell_output(const char *command)
{
    struct text call = {0}, result = {0};
    add_string(&call, "shell ");
    add_string(&call, command);
    function_call(&result, call.bytes, call.length);
    free(call.bytes);
    return finish(&result);
}

/* Appends to the value that is seen from the scope. */
static void append(struct scope *in, const char *name, const char *value, enum origin origin)
{
    struct scope *before = scope;
    struct text text = {0};
    scope = in;
    const struct variable *v = variable_find(name, strlen(name));
    int recursive = !v || v->recursive;
    if (v) {
        add_string(&text, v->value);
        add(&text, " ", *v->value != 0);
    }
    char *added = recursive ? copy(value, strlen(value)) : expand(value);
    add_string(&text, added);
    variable_set(in, name, text.bytes, recursive, origin);
    free(added);
    free(text.bytes);
    scope = before;
}

void assign(struct scope *in, const struct assignment *assignment, enum origin origin)
{
    char *expanded = expand(assignment->name), *value = NULL;
    const char *name = strip(expanded);
    if (!*name)
        fatal(&reading, "empty variable name");
    if (assignment->override)
        origin = OVERRIDE;
    switch (assignment->how) {
    case '+':
        append(in, name, assignment->value, origin);
        break;
    case '?':
        if (!variable_find(name, strlen(name)))
            variable_set(in, name, assignment->value, 1, origin);
        break;
    case '=':
        variable_set(in, name, assignment->value, 1, origin);
        break;
    default:
        value = assignment->how == ':' ? expand(assignment->value) : shell_output(assignment->value);
        variable_set(in, name, value, 0, origin);
    }
    if (assignment->exported)
        variable_export(name, strlen(name), 1);
    free(value);
    free(expanded);
}

void variable_export(const char *name, size_t length, int exported)
{
    char *string = copy(name, length);
    if (!find_in(&global, name, length))
        variable_set(&global, string, "", 1, DEFAULT);
    find_in(&global, name, length)->exported = (char)exported;
    free(string);
}

void environment_read(void)
{
    for (char **entry = environ; *entry; entry++) {
        const char *equals = strchr(*entry, '=');
        if (!equals || equals == *entry)
            continue;
        char *name = copy(*entry, equals - *entry);
        /* The shell of commands is always /bin/sh (POSIX, make). */
        if (strcmp(name, "SHELL") != 0) {
            variable_set(&global, name, equals + 1, 0, ENVIRONMENT);
            variable_export(name, strlen(name), 1);
        }
        free(name);
    }
}

void environment_write(void)
{
    for (const struct variable *v = global.first; v; v = v->next) {
        if (!v->exported && v->origin != COMMAND_LINE)
            continue;
        const struct variable *seen = variable_find(v->name, strlen(v->name));
        char *value = seen->recursive ? expand(seen->value) : copy(seen->value, strlen(seen->value));
        setenv(v->name, value, 1);
        free(value);
    }
}
