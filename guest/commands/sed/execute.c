/* Executes sed's commands on the lines of the input. */

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include "sed.h"

#define GROUPS 10

enum flow { NEXT, NEW_CYCLE, RESTART, QUIT };

static struct text pattern, hold, after, result; /* `after`: what goes out at the end of the cycle */
static FILE *out;
static int quiet, substituted, status;
static const regex_t *last_regex;

static int matches(const regex_t *regex, const char *s, regmatch_t *groups, int flags)
{
    if (regex)
        last_regex = regex;
    if (!last_regex) {
        fprintf(stderr, "sed: there is no last regular expression\n");
        exit(2);
    }
    return regexec(last_regex, s, groups ? GROUPS : 0, groups, flags) == 0;
}

static int address_matches(const struct address *address)
{
    return address->kind == LINE ? line_number == address->line : address->kind == LAST ? input_is_last() :
           matches(address->regex, pattern.bytes, NULL, 0);
}

/* Whether the command is for this line. A range whose second address is a line before ends at once. */
static int selected(struct command *command)
{
    if (command->from.kind == NO_ADDRESS)
        return 1;
    if (command->to.kind == NO_ADDRESS)
        return address_matches(&command->from);
    int counted = command->to.kind == LINE || command->to.kind == MORE_LINES;
    if (!command->active) {
        if (!address_matches(&command->from))
            return 0;
        command->last = command->to.line + (command->to.kind == MORE_LINES ? line_number : 0);
        command->active =
            counted ? command->last > line_number : !(command->to.kind == LAST && input_is_last());
        return 1;
    }
    command->active = counted ? line_number < command->last : !address_matches(&command->to);
    if (counted && line_number > command->last)
        return address_matches(&command->from);
    return 1;
}

static void put_line(FILE *file, const char *bytes, size_t count)
{
    fwrite(bytes, 1, count, file);
    if (!input_ended_without_newline())
        putc('\n', file);
}

/* What s puts in: & and \1 to \9 are parts of the match, a backslash before a newline or another character is
   that. */
static void put_in(const char *text, const char *line, const regmatch_t *groups)
{
    for (; *text; text++) {
        int group = *text == '&' ? 0 : *text == '\\' && isdigit(text[1]) ? text[1] - '0' : -1;
        int escaped = *text == '\\' && text[1];
        text += escaped;
        if (group < 0) {
            char c = escaped && *text == 'n' ? '\n' : escaped && *text == 't' ? '\t' : *text;
            text_add(&result, &c, 1);
        } else if (groups[group].rm_so >= 0) {
            text_add(&result, line + groups[group].rm_so, groups[group].rm_eo - groups[group].rm_so);
        }
    }
}

static void substitute(const struct command *command)
{
    regmatch_t groups[GROUPS];
    const char *line = pattern.bytes, *end = line + pattern.used;
    int number = 0, done = 0, after_match = 0;
    text_clear(&result);
    while (line <= end && matches(command->regex, line, groups, line > pattern.bytes ? REG_NOTBOL : 0)) {
        int empty = groups[0].rm_eo == groups[0].rm_so;
        /* No empty match right after another match. */
        int counts = !(empty && after_match && groups[0].rm_so == 0);
        number += counts;
        text_add(&result, line, groups[0].rm_so);
        if (counts
            && (command->global ? number >= command->which
                                : number == (command->which ? command->which : 1))) {
            put_in(command->text, line, groups);
            done = 1;
        } else {
            text_add(&result, line + groups[0].rm_so, groups[0].rm_eo - groups[0].rm_so);
        }
        line += groups[0].rm_eo;
        after_match = !empty;
        if (empty && line < end)
            text_add(&result, line, 1);
        line += empty;
        if (done && !command->global)
            break;
    }
    if (!done)
        return;
    if (line < end)
        text_add(&result, line, end - line);
    struct text old = pattern;
    pattern = result;
    result = old;
    substituted = 1;
    if (command->print)
        put_line(out, pattern.bytes, pattern.used);
    if (command->file)
        put_line(command->file, pattern.bytes, pattern.used);
}

static void append_file(const char *path)
{
    char buffer[1024];
    size_t got;
    FILE *file = fopen(path, "r");
    while (file && (got = fread(buffer, 1, sizeof buffer, file)) > 0)
        text_add(&after, buffer, got);
    if (file)
        fclose(file);
}

/* The command l: characters that are not printed are visible. */
static void list(void)
{
    static const char escaped[] = "\\\a\b\f\n\r\t\v", letters[] = "\\abfnrtv";
    for (size_t i = 0; i < pattern.used; i++) {
        unsigned char c = pattern.bytes[i];
        const char *found = c ? strchr(escaped, c) : NULL;
        if (found)
            fprintf(out, "\\%c", letters[found - escaped]);
        else
            fprintf(out, isprint(c) ? "%c" : "\\%03o", c);
    }
    fputs("$\n", out);
}

static void end_cycle(int print)
{
    if (print && !quiet)
        put_line(out, pattern.bytes, pattern.used);
    fwrite(after.bytes, 1, after.used, out);
    text_clear(&after);
}

static enum flow next_line(int append)
{
    if (input_is_last()) {
        end_cycle(1);
        return QUIT;
    }
    if (!append || after.used)
        end_cycle(!append);
    input_line(&pattern, append);
    return NEXT;
}

static void copy(struct text *to, const struct text *from, int append)
{
    if (append)
        text_add(to, "\n", 1);
    else
        text_clear(to);
    text_add(to, from->bytes, from->used);
}

static void exchange(void)
{
    struct text old = pattern;
    pattern = hold;
    hold = old;
}

static void translate(const char *table)
{
    for (size_t i = 0; i < pattern.used; i++)
        pattern.bytes[i] = table[(unsigned char)pattern.bytes[i]];
}

static enum flow first_line_deleted(void)
{
    char *newline = memchr(pattern.bytes, '\n', pattern.used);
    if (!newline)
        return NEW_CYCLE;
    size_t gone = newline + 1 - pattern.bytes;
    memmove(pattern.bytes, newline + 1, pattern.used - gone + 1);
    pattern.used -= gone;
    return RESTART;
}

static enum flow simple_command(const struct command *command)
{
    switch (command->name) {
    case '=': fprintf(out, "%lu\n", line_number); break;
    case 'a': text_add(&after, command->text, strlen(command->text)); break;
    case 'c':
        if (!command->active || command->negated)
            fputs(command->text, out);
        return NEW_CYCLE;
    case 'd': return NEW_CYCLE;
    case 'D': return first_line_deleted();
    case 'g': copy(&pattern, &hold, 0); break;
    case 'G': copy(&pattern, &hold, 1); break;
    case 'h': copy(&hold, &pattern, 0); break;
    case 'H': copy(&hold, &pattern, 1); break;
    case 'i': fputs(command->text, out); break;
    case 'l': list(); break;
    case 'n': return next_line(0);
    case 'N': return next_line(1);
    case 'p': put_line(out, pattern.bytes, pattern.used); break;
    case 'P': fprintf(out, "%.*s\n", (int)strcspn(pattern.bytes, "\n"), pattern.bytes); break;
    case 'q':
        status = command->which;
        end_cycle(1);
        return QUIT;
    case 'r': append_file(command->text); break;
    case 's': substitute(command); break;
    case 'w': put_line(command->file, pattern.bytes, pattern.used); break;
    case 'x': exchange(); break;
    case 'y': translate(command->text); break;
    }
    return NEXT;
}

static enum flow cycle(struct command *script)
{
    for (int i = 0; script[i].name; i++) {
        struct command *command = &script[i];
        int chosen = selected(command) != command->negated;
        if (command->name == '{' && !chosen)
            i = command->target;
        if (!chosen)
            continue;
        if (command->name == 'b' || (command->name == 't' && substituted)) {
            substituted &= command->name == 'b';
            i = command->target - 1;
            continue;
        }
        enum flow flow = simple_command(command);
        if (flow != NEXT)
            return flow;
    }
    end_cycle(1);
    return NEW_CYCLE;
}

int execute_script(struct command *script, int no_print, FILE *output)
{
    enum flow flow = NEW_CYCLE;
    quiet = no_print;
    out = output;
    text_clear(&hold);
    text_clear(&after);
    while (flow != QUIT && (flow == RESTART || input_line(&pattern, 0))) {
        substituted &= flow == RESTART;
        flow = cycle(script);
        if (flow != QUIT)
            end_cycle(0);
    }
    return status;
}
