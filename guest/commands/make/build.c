/* Brings files up to date: first their prerequisites, then they themselves, if one of those is newer. */

#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <tern/command.h>
#include "make.h"
#include "recipe.h"

#define DEPTH 300 /* of prerequisites of prerequisites */

static int depth;

/* Takes the variables of the target into `own`. */
static void set_variables(const struct file *file, struct scope *own)
{
    struct stem stem;
    for (const struct target_variable *v = pattern_variables; v; v = v->next)
        if (pattern_match(v->pattern, file->name, strlen(file->name), &stem))
            assign(own, &v->assignment, MAKEFILE);
    for (const struct target_variable *v = file->variables; v; v = v->next)
        assign(own, &v->assignment, MAKEFILE);
}

/* Whether the file must be made again because of this prerequisite. One that was made just now, in the second
   in which the file was made before, is newer. */
static int is_newer(const struct prerequisite *one, const struct file *file)
{
    const struct file *needed = one->file;
    if (one->only_order || needed->state != DONE)
        return 0;
    return !needed->exists || needed->time > file->time || (needed->changed && needed->time == file->time);
}

static int is_among(const struct prerequisite *first, const struct prerequisite *last)
{
    for (; first != last; first = first->next)
        if (first->file == last->file && first->only_order == last->only_order)
            return 1;
    return 0;
}

static void set_automatic(struct file *file, struct scope *own)
{
    struct text all = {0}, each = {0}, newer = {0}, order = {0};
    const char *first = "";
    for (const struct prerequisite *p = file->prerequisites; p; p = p->next) {
        const char *name = p->file->name;
        size_t length = strlen(name);
        if (!p->only_order) {
            add_word(&all, name, length);
            first = *first ? first : name;
        }
        if (is_among(file->prerequisites, p))
            continue;
        add_word(p->only_order ? &order : &each, name, length);
        if (!p->only_order && (!file->exists || is_newer(p, file)))
            add_word(&newer, name, length);
    }
    variable_set(own, "@", file->name, 0, AUTOMATIC);
    variable_set(own, "<", first, 0, AUTOMATIC);
    variable_set(own, "^", finish(&each), 0, AUTOMATIC);
    variable_set(own, "+", finish(&all), 0, AUTOMATIC);
    variable_set(own, "?", finish(&newer), 0, AUTOMATIC);
    variable_set(own, "|", finish(&order), 0, AUTOMATIC);
    variable_set(own, "*", file->stem ? file->stem : "", 0, AUTOMATIC);
    free(all.bytes);
    free(each.bytes);
    free(newer.bytes);
    free(order.bytes);
}

static void no_rule(const struct file *file, const struct file *by)
{
    struct text text = {0};
    add_string(&text, "No rule to make target '");
    add_string(&text, file->name);
    if (by) {
        add_string(&text, "', needed by '");
        add_string(&text, by->name);
    }
    add_string(&text, "'");
    if (!go_on)
        fatal(NULL, "%s", text.bytes);
    say("*** %s.", text.bytes);
    free(text.bytes);
}

static int build(struct file *file, const struct file *by, struct scope *outer);

/* Builds the prerequisites. Returns whether that failed; *newer says whether one is newer than the file. */
static int build_prerequisites(struct file *file, struct scope *own, int *newer)
{
    int failed = 0;
    for (struct prerequisite **at = &file->prerequisites; *at && (!failed || go_on);) {
        struct prerequisite *one = *at;
        if (one->file->state == BUSY) {
            say("Circular %s <- %s dependency dropped.", file->name, one->file->name);
            *at = one->next;
            free(one);
            continue;
        }
        failed |= build(one->file, file, own);
        *newer |= is_newer(one, file);
        at = &one->next;
    }
    return failed;
}

/* Executes the recipe. What has none and is no file counts as made now. */
static void make(struct file *file, struct scope *own)
{
    long long before = file->time;
    int existed = file->exists;
    if (!file->recipe) {
        file->exists = 0;
        return;
    }
    set_automatic(file, own);
    file->failed = (char)recipe_execute(file);
    file_look(file);
    file->changed = !existed || file->time != before;
    if (dry_run || file->phony)
        file->exists = 0;
}

static int build(struct file *file, const struct file *by, struct scope *outer)
{
    struct scope own = {.outer = outer}, *before = scope;
    int newer = 0;
    if (file->state == DONE)
        return file->failed;
    if (depth++ == DEPTH)
        fatal(NULL, "prerequisites are nested too deeply at '%s'", file->name);
    file->state = BUSY;
    if (!file->recipe && !file->phony)
        pattern_rule_apply(file);
    file_look(file);
    if (!file->exists && !file->recipe && !file->is_target && !file->phony) {
        no_rule(file, by);
        file->failed = 1;
    } else {
        set_variables(file, &own);
        file->failed = (char)build_prerequisites(file, &own, &newer);
        scope = &own;
        if (file->failed && !by && go_on)
            say("Target '%s' not remade because of errors.", file->name);
        else if (!file->failed && (newer || always_make || file->phony || !file->exists))
            make(file, &own);
        scope = before;
        scope_empty(&own);
    }
    file->state = DONE;
    depth--;
    return file->failed;
}

int goal_build(struct file *goal)
{
    unsigned long before = commands_executed;
    if (build(goal, NULL, &global))
        return 1;
    if (commands_executed == before && !silent) {
        say_plainly(goal->phony || !goal->recipe ? "Nothing to be done for '%s'." : "'%s' is up to date.",
                    goal->name);
    }
    return 0;
}
