/* Variables. */

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sh.h"

struct variable {
    struct variable *next;
    char *name, *value;        /* value NULL: exported, but not set */
    int exported;
};

static struct variable *variables;

int is_name(const char *text, size_t bytes)
{
    if (bytes == 0 || isdigit((unsigned char)text[0]))
        return 0;
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)text[i]) && text[i] != '_')
            return 0;
    return 1;
}

static struct variable *find(const char *name)
{
    struct variable *v = variables;
    while (v && strcmp(v->name, name))
        v = v->next;
    return v;
}

static struct variable *make(const char *name)
{
    struct variable *v = find(name);
    if (v)
        return v;
    v = calloc(1, sizeof *v);
    if (!v || !(v->name = strdup(name)))
        exit(2);
    v->next = variables;
    return variables = v;
}

const char *variable(const char *name)
{
    struct variable *v = find(name);
    return v ? v->value : NULL;
}

int variable_set(const char *name, const char *value, int exported)
{
    struct variable *v = make(name);
    char *copy = strdup(value);
    if (!copy)
        exit(2);
    free(v->value);
    v->value = copy;
    v->exported |= exported;
    return 0;
}

void variable_export(const char *name)
{
    make(name)->exported = 1;
}

void variable_unset(const char *name)
{
    for (struct variable **at = &variables; *at; at = &(*at)->next) {
        struct variable *v = *at;
        if (strcmp(v->name, name))
            continue;
        *at = v->next;
        free(v->name);
        free(v->value);
        free(v);
        return;
    }
}

void variables_take(char **environment)
{
    for (; *environment; environment++) {
        const char *equals = strchr(*environment, '=');
        char name[128];
        if (!equals || (size_t)(equals - *environment) >= sizeof name ||
            !is_name(*environment, equals - *environment))
            continue;
        memcpy(name, *environment, equals - *environment);
        name[equals - *environment] = 0;
        variable_set(name, equals + 1, 1);
    }
}

char **variables_environment(void)
{
    size_t count = 0;
    for (struct variable *v = variables; v; v = v->next)
        count++;
    char **environment = allocate((count + 1) * sizeof *environment);
    count = 0;
    for (struct variable *v = variables; v; v = v->next) {
        struct buffer entry = {0};
        if (!v->exported || !v->value)
            continue;
        put_text(&entry, v->name);
        put(&entry, '=');
        put_text(&entry, v->value);
        environment[count++] = buffer_text(&entry);
    }
    return environment;
}

void variables_print(int exported_only)
{
    for (struct variable *v = variables; v; v = v->next) {
        if (exported_only ? !v->exported : !v->value)
            continue;
        printf("%s%s='", exported_only ? "export " : "", v->name);
        for (const char *c = v->value ? v->value : ""; *c; c++)
            *c == '\'' ? printf("'\\''") : putchar(*c);
        printf("'\n");
    }
}
