/* Files, and the rules by which they are made. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tern/command.h>
#include "make.h"

#define BUCKETS 1024
#define CHAIN 4 /* pattern rules in a row */

struct file *default_goal;
struct target_variable *pattern_variables;
int delete_on_error;

static struct file *files[BUCKETS];
static struct pattern_rule *pattern_rules;

/* FNV-1a. */
static unsigned hash(const char *name, size_t length)
{
    unsigned value = 2166136261u;
    while (length--)
        value = (value ^ (unsigned char)*name++) * 16777619u;
    return value % BUCKETS;
}

struct file *file_find(const char *name, size_t length)
{
    for (struct file *file = files[hash(name, length)]; file; file = file->next)
        if (strncmp(file->name, name, length) == 0 && file->name[length] == 0)
            return file;
    return NULL;
}

struct file *file_named(const char *name, size_t length)
{
    while (length > 2 && name[0] == '.' && name[1] == '/') {
        name += 2;
        length -= 2;
    }
    struct file *file = file_find(name, length), **bucket = &files[hash(name, length)];
    if (file)
        return file;
    file = need(NULL, sizeof *file);
    *file = (struct file){.next = *bucket, .name = copy(name, length)};
    return *bucket = file;
}

void file_look(struct file *file)
{
    struct stat status;
    file->exists = stat(file->name, &status) == 0;
    file->time = file->exists ? status.st_mtime : 0;
}

int is_special(const char *name)
{
    return name[0] == '.' && !strchr(name, '/');
}

void prerequisites_add(struct file *file, const char *names, int only_order, int in_front)
{
    struct text all = {0};
    struct prerequisite **at = &file->prerequisites, *one;
    const char *name;
    size_t length;
    while ((name = next_word(&names, &length))) {
        char *word = copy(name, length);
        size_t before = all.length;
        if (has_glob(word, length))
            words_glob(&all, word);
        if (all.length == before)
            add_word(&all, word, length);
        free(word);
    }
    names = finish(&all);
    while (*at && !in_front)
        at = &(*at)->next;
    while ((name = next_word(&names, &length))) {
        one = need(NULL, sizeof *one);
        *one = (struct prerequisite){*at, file_named(name, length), only_order};
        *at = one;
        at = &one->next;
    }
    free(all.bytes);
}

/* Targets that say something about others. */
static void special_add(const char *name, const char *prerequisites)
{
    size_t length;
    const char *word;
    if (strcmp(name, ".DELETE_ON_ERROR") == 0)
        delete_on_error = 1;
    if (strcmp(name, ".PHONY") != 0)
        return;
    while ((word = next_word(&prerequisites, &length)))
        file_named(word, length)->phony = 1;
}

static void pattern_rule_add(const char *target, const char *prerequisites, const char *order,
                             struct recipe *recipe)
{
    struct pattern_rule *rule = need(NULL, sizeof *rule), **at = &pattern_rules;
    *rule = (struct pattern_rule){.target = copy(target, strlen(target)),
                                  .prerequisites = copy(prerequisites, strlen(prerequisites)),
                                  .order = copy(order, strlen(order)), .recipe = recipe};
    while (*at)
        at = &(*at)->next;
    *at = rule;
}

static void set_recipe(struct file *file, struct recipe *recipe)
{
    if (file->recipe && file->recipe != recipe) {
        fflush(stdout);
        fprintf(stderr, "%s:%d: warning: overriding recipe for target '%s'\n", recipe->place.file,
                recipe->place.line, file->name);
        fprintf(stderr, "%s:%d: warning: ignoring old recipe for target '%s'\n", file->recipe->place.file,
                file->recipe->place.line, file->name);
    }
    file->recipe = recipe;
}

/* Adds the words of `patterns`, filled with the stem. */
static char *fill_all(const char *patterns, const struct stem *stem, const char *directory, size_t bytes)
{
    struct text filled = {0};
    const char *word;
    size_t length;
    while ((word = next_word(&patterns, &length))) {
        add_word(&filled, directory, memchr(word, '%', length) ? bytes : 0);
        pattern_fill(&filled, word, length, stem);
    }
    return finish(&filled);
}

/* Prerequisites of a target of a static pattern rule. */
static void add_static(struct file *file, const char *pattern, const char *prerequisites, const char *order,
                       int in_front)
{
    struct stem stem = {0};
    if (!pattern_match(pattern, file->name, strlen(file->name), &stem)) {
        fatal(&reading, "target '%s' doesn't match the target pattern", file->name);
    }
    char *names = fill_all(prerequisites, &stem, "", 0), *before = fill_all(order, &stem, "", 0);
    prerequisites_add(file, names, 0, in_front);
    prerequisites_add(file, before, 1, 0);
    free(names);
    free(before);
    free(file->stem);
    file->stem = copy(stem.at, stem.length);
}

void rule_add(const char *targets, const char *pattern, const char *prerequisites, const char *order,
              struct recipe *recipe)
{
    const char *word;
    size_t length, bytes;
    const char *trimmed = pattern ? next_word(&pattern, &bytes) : NULL;
    char *static_pattern = trimmed ? copy(trimmed, bytes) : NULL;
    while ((word = next_word(&targets, &length))) {
        char *name = copy(word, length);
        if (is_special(name)) {
            special_add(name, prerequisites);
        } else if (strchr(name, '%')) {
            pattern_rule_add(name, prerequisites, order, recipe);
        } else {
            struct file *file = file_named(name, length);
            file->is_target = 1;
            if (!default_goal)
                default_goal = file;
            if (static_pattern) {
                add_static(file, static_pattern, prerequisites, order, recipe != NULL);
            } else {
                prerequisites_add(file, prerequisites, 0, recipe != NULL);
                prerequisites_add(file, order, 1, 0);
            }
            if (recipe)
                set_recipe(file, recipe);
        }
        free(name);
    }
    free(static_pattern);
}

void target_variable_add(const char *targets, struct assignment *assignment)
{
    const char *word;
    size_t length;
    while ((word = next_word(&targets, &length))) {
        struct target_variable *one = need(NULL, sizeof *one), **at = &pattern_variables;
        *one = (struct target_variable){.assignment = *assignment};
        one->assignment.name = copy(assignment->name, strlen(assignment->name));
        one->assignment.value = copy(assignment->value, strlen(assignment->value));
        if (memchr(word, '%', length))
            one->pattern = copy(word, length);
        else
            at = &file_named(word, length)->variables;
        while (*at)
            at = &(*at)->next;
        *at = one;
    }
    assignment_free(assignment);
}

/* Pattern rules. */

/* What a pattern rule makes of a target. */
struct fit {
    struct pattern_rule *rule;
    struct stem stem;
    size_t directory; /* of the target, which stands before the stem */
};

/* A pattern without a slash is one of the file's name in its directory. */
static int fits(struct pattern_rule *rule, const char *name, struct fit *fit)
{
    size_t length = strlen(name);
    size_t directory = strchr(rule->target, '/') ? 0 : directory_length(name, length);
    *fit = (struct fit){.rule = rule, .directory = directory};
    return pattern_match(rule->target, name + directory, length - directory, &fit->stem) && fit->stem.length;
}

static int find_rule(const char *name, int chain, struct fit *found);

static int can_be_made(const char *name, size_t length, int chain)
{
    struct stat status;
    struct fit fit;
    const struct file *file = file_find(name, length);
    if (file && (file->is_target || file->phony))
        return 1;
    char *path = copy(name, length);
    int can = stat(path, &status) == 0 || (chain < CHAIN && find_rule(path, chain + 1, &fit));
    free(path);
    return can;
}

static int all_can_be_made(const struct fit *fit, const char *name, int chain)
{
    char *names = fill_all(fit->rule->prerequisites, &fit->stem, name, fit->directory);
    const char *at = names, *word;
    size_t length;
    int can = 1;
    while (can && (word = next_word(&at, &length)))
        can = can_be_made(word, length, chain);
    free(names);
    return can;
}

/* The rule with the shortest stem whose prerequisites can be had. */
static int find_rule(const char *name, int chain, struct fit *found)
{
    found->rule = NULL;
    for (struct pattern_rule *rule = pattern_rules; rule; rule = rule->next) {
        struct fit fit;
        if (rule->used || !rule->recipe || !fits(rule, name, &fit))
            continue;
        if (found->rule && fit.stem.length + fit.directory >= found->stem.length + found->directory)
            continue;
        rule->used = 1;
        if (all_can_be_made(&fit, name, chain))
            *found = fit;
        rule->used = 0;
    }
    return found->rule != NULL;
}

void pattern_rule_apply(struct file *file)
{
    struct fit fit;
    if (!find_rule(file->name, 0, &fit))
        return;
    char *names = fill_all(fit.rule->prerequisites, &fit.stem, file->name, fit.directory);
    char *order = fill_all(fit.rule->order, &fit.stem, file->name, fit.directory);
    struct text stem = {0};
    add(&stem, file->name, fit.directory);
    add(&stem, fit.stem.at, fit.stem.length);
    prerequisites_add(file, names, 0, 1);
    prerequisites_add(file, order, 1, 0);
    file->recipe = fit.rule->recipe;
    file->stem = stem.bytes;
    free(names);
    free(order);
}
