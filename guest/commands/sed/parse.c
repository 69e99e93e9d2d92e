/* sed's scripts (POSIX, Shell & Utilities, sed). */

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include "sed.h"

#define DEPTH_MAX 32

static const char *at;             /* what is read next */
static int regex_flags;
static struct command *commands;
static int count;
static int open_blocks[DEPTH_MAX], depth;

static void __attribute__((noreturn)) fail(const char *what)
{
    fprintf(stderr, "sed: command %d: %s\n", count + 1, what);
    exit(2);
}

static void skip_blanks(void)
{
    while (*at == ' ' || *at == '\t')
        at++;
}

/* Reads up to the delimiter. With it a backslash means the delimiter itself; `\n` is a newline in
   expressions. */
static char *delimited(char delimiter, int expression)
{
    char *result = need(NULL, strlen(at) + 1), *to = result;
    int brackets = 0;
    for (; *at && (*at != delimiter || brackets); at++) {
        if (*at == '\n' && expression)
            break;
        if (expression && !brackets && *at == '[') {
            brackets = 1;
            *to++ = *at;
            if (at[1] == '^')
                *to++ = *++at;
            if (at[1] == ']')
                *to++ = *++at;
            continue;
        }
        brackets = brackets && *at != ']';
        if (*at == '\\' && at[1]) {
            at++;
            if (expression && (*at == 'n' || *at == 't')) {
                *to++ = *at == 'n' ? '\n' : '\t';
                continue;
            }
            if (*at != delimiter)
                *to++ = '\\';
        }
        *to++ = *at;
    }
    if (*at != delimiter)
        fail("a delimiter is missing");
    at++;
    *to = 0;
    return result;
}

static regex_t *compile(char *pattern, int flags)
{
    regex_t *regex = NULL;
    if (*pattern) {
        regex = need(NULL, sizeof *regex);
        if (regcomp(regex, pattern, flags))
            fail("no regular expression");
    }
    free(pattern);
    return regex;
}

static void read_address(struct address *address)
{
    if (isdigit(*at)) {
        address->kind = LINE;
        address->line = strtoul(at, (char **)&at, 10);
    } else if (*at == '$') {
        address->kind = LAST;
        at++;
    } else if (*at == '/' || *at == '\\') {
        if (*at == '\\')
            at++;
        char *pattern = delimited(*at++, 1);
        int ignore_case = *at == 'I';
        at += ignore_case;
        address->kind = PATTERN;
        address->regex = compile(pattern, regex_flags | (ignore_case ? REG_ICASE : 0));
    }
}

static void read_addresses(struct command *command)
{
    read_address(&command->from);
    skip_blanks();
    if (command->from.kind != NO_ADDRESS && *at == ',') {
        at++;
        skip_blanks();
        int more = *at == '+';
        at += more;
        read_address(&command->to);
        if (command->to.kind == NO_ADDRESS || (more && command->to.kind != LINE))
            fail("no address follows the comma");
        if (more)
            command->to.kind = MORE_LINES;
        skip_blanks();
    }
    for (; *at == '!' || *at == ' '; at++)
        command->negated |= *at == '!';
}

/* A name up to the end of the line, or for labels up to a semicolon. */
static char *name(const char *ends)
{
    skip_blanks();
    size_t length = strcspn(at, ends);
    char *result = need(NULL, length + 1);
    memcpy(result, at, length);
    result[length] = 0;
    at += length;
    return result;
}

/* The text of a, i and c: to the end of the line; a backslash before the newline lets it go on. */
static char *inserted_text(void)
{
    skip_blanks();
    if (*at == '\\') {
        at++;
        skip_blanks();
        if (*at == '\n')
            at++;
    }
    char *result = need(NULL, strlen(at) + 2), *to = result;
    for (; *at && *at != '\n'; at++) {
        if (*at == '\\' && at[1])
            at++;
        *to++ = *at;
    }
    strcpy(to, "\n");
    return result;
}

static FILE *output_file(void)
{
    char *path = name("\n");
    FILE *file = strcmp(path, "/dev/stdout") == 0 ? stdout : fopen(path, "w");
    if (!file) {
        perror(path);
        exit(2);
    }
    free(path);
    return file;
}

static void read_substitution(struct command *command)
{
    char delimiter = *at++;
    if (!delimiter || delimiter == '\n' || delimiter == '\\')
        fail("s needs a delimiter");
    char *pattern = delimited(delimiter, 1);
    int flags = regex_flags;
    command->text = delimited(delimiter, 0);
    for (;; at++) {
        if (*at == 'g')
            command->global = 1;
        else if (*at == 'p')
            command->print = 1;
        else if (*at == 'i' || *at == 'I')
            flags |= REG_ICASE;
        else if (isdigit(*at))
            command->which = command->which * 10 + *at - '0';
        else
            break;
    }
    if (*at == 'w') {
        at++;
        command->file = output_file();
    }
    command->regex = compile(pattern, flags);
}

/* The text of y becomes a table of 256 characters. */
static void read_table(struct command *command)
{
    char delimiter = *at ? *at++ : 0, *from = delimited(delimiter, 1), *to = delimited(delimiter, 1);
    if (strlen(from) != strlen(to))
        fail("the strings of y have different lengths");
    command->text = need(NULL, 256);
    for (int i = 0; i < 256; i++)
        command->text[i] = (char)i;
    for (int i = 0; from[i]; i++)
        command->text[(unsigned char)from[i]] = to[i];
    free(from);
    free(to);
}

static void read_arguments(struct command *command)
{
    switch (command->name) {
    case '{':
        if (depth == DEPTH_MAX)
            fail("too many blocks");
        open_blocks[depth++] = count;
        break;
    case '}':
        if (!depth)
            fail("} without {");
        commands[open_blocks[--depth]].target = count;
        break;
    case 'a': case 'i': case 'c': command->text = inserted_text(); break;
    case 'b': case 't': command->text = name("\n;}"); break;
    case ':': command->text = name("\n;"); break;
    case 'r': command->text = name("\n"); break;
    case 'w': command->file = output_file(); break;
    case 's': read_substitution(command); break;
    case 'y': read_table(command); break;
    case 'q':
        skip_blanks();
        command->which = (int)strtoul(at, (char **)&at, 10);
        break;
    default:
        if (!strchr("=dDgGhHlnNpPx", command->name))
            fail("no such command");
    }
    skip_blanks();
    if (*at && !strchr("\n;}#", *at) && command->name != '{')
        fail("something follows it");
}

static int label(const char *wanted)
{
    for (int i = 0; i < count; i++)
        if (commands[i].name == ':' && strcmp(commands[i].text, wanted) == 0)
            return i;
    if (*wanted)
        fail("no such label");
    return count;
}

struct command *parse_script(const char *script, int flags)
{
    regex_flags = flags;
    for (at = script;; count++) {
        while (isspace(*at) || *at == ';')
            at++;
        if (*at == '#') {
            at += strcspn(at, "\n");
            count--;
            continue;
        }
        commands = need(commands, (count + 1) * sizeof *commands);
        struct command *command = &commands[count];
        memset(command, 0, sizeof *command);
        if (!*at)
            break;
        read_addresses(command);
        if (!(command->name = *at))
            fail("a command is missing");
        at++;
        read_arguments(command);
    }
    if (depth)
        fail("{ without }");
    for (int i = 0; i < count; i++)
        if (commands[i].name == 'b' || commands[i].name == 't')
            commands[i].target = label(commands[i].text);
    return commands;
}
