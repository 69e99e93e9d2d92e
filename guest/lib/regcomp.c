/* Regular expressions: from text to programs. */

#include <ctype.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "regexnode.h"

#define DEPTH_MAX 100        /* of groups in groups */

struct parser {
    regex_t *regex;
    const char *p, *start;
    int extended, error, depth;
};

static void parse_alternatives(struct parser *parser);

/* Makes room for `count` nodes at `at`. */
static struct regex_node *insert(struct parser *parser, int at, int count)
{
    regex_t *regex = parser->regex;

    if (regex->used + count > REGEX_NODES_MAX) {
        parser->error = REG_ESPACE;
    } else if (regex->used + count > regex->room) {
        int room = (regex->used + count) * 2;
        struct regex_node *nodes = realloc(regex->nodes, room * sizeof *nodes);

        if (nodes) {
            regex->nodes = nodes;
            regex->room = room;
        } else {
            parser->error = REG_ESPACE;
        }
    }
    if (parser->error)
        return NULL;
    memmove(regex->nodes + at + count, regex->nodes + at, (regex->used - at) * sizeof *regex->nodes);
    memset(regex->nodes + at, 0, count * sizeof *regex->nodes);
    regex->used += count;
    return regex->nodes + at;
}

static struct regex_node *emit_at(struct parser *parser, int at, int operation, int a, int b)
{
    struct regex_node *node = insert(parser, at, 1);

    if (node) {
        node->operation = operation;
        node->a = a;
        node->b = b;
    }
    return node;
}

static struct regex_node *emit(struct parser *parser, int operation, int a)
{
    return emit_at(parser, parser->regex->used, operation, a, 0);
}

static void append_copy(struct parser *parser, int from, int count)
{
    if (insert(parser, parser->regex->used, count))
        memcpy(parser->regex->nodes + parser->regex->used - count, parser->regex->nodes + from,
               count * sizeof *parser->regex->nodes);
}

static void make_optional(struct parser *parser, int at)
{
    emit_at(parser, at, REGEX_SPLIT, 1, parser->regex->used - at + 1);
}

static void make_star(struct parser *parser, int at)
{
    int length = parser->regex->used - at;

    emit_at(parser, at, REGEX_SPLIT, 1, length + 2);
    emit(parser, REGEX_JUMP, -(length + 1));
}

/* Repeats what stands from `at` on: {low,high}, where high -1 has no limit. */
static void repeat(struct parser *parser, int at, int low, int high)
{
    int length = parser->regex->used - at, i, last;

    for (i = 1; i < low && !parser->error; i++)
        append_copy(parser, at, length);
    if (high < 0) {
        if (low)
            append_copy(parser, at, length);
        if (!parser->error)
            make_star(parser, parser->regex->used - length);
        return;
    }
    for (i = low ? low : 1; i < high && !parser->error; i++) {
        last = parser->regex->used;
        append_copy(parser, at, length);
        if (!parser->error)
            make_optional(parser, last);
    }
    if (low == 0 && high > 0)
        make_optional(parser, at);
    else if (high == 0)
        parser->regex->used = at;
}

static void add(struct regex_node *node, int c, int icase)
{
    node->set[(unsigned char)c / 8] |= 1 << c % 8;
    if (icase) {
        node->set[toupper(c) / 8] |= 1 << toupper(c) % 8;
        node->set[tolower(c) / 8] |= 1 << tolower(c) % 8;
    }
}

static int add_class(struct parser *parser, struct regex_node *node)
{
    static const struct {
        const char *name;
        int (*test)(int);
    } classes[] = {
        { "alpha", isalpha }, { "digit", isdigit }, { "alnum", isalnum }, { "upper", isupper },
        { "lower", islower }, { "space", isspace }, { "blank", isblank }, { "punct", ispunct },
        { "xdigit", isxdigit }, { "print", isprint }, { "cntrl", iscntrl }, { "graph", isgraph },
    };
    const char *end = strstr(parser->p + 2, ":]");
    size_t i;
    int c;

    for (i = 0; end && i < sizeof classes / sizeof *classes; i++) {
        size_t length = strlen(classes[i].name);

        if (length != (size_t)(end - parser->p - 2) || strncmp(classes[i].name, parser->p + 2, length))
            continue;
        for (c = 0; c < 128; c++)
            if (classes[i].test(c))
                add(node, c, parser->regex->flags & REG_ICASE);
        parser->p = end + 2;
        return 1;
    }
    return 0;
}

static void parse_set(struct parser *parser)
{
    struct regex_node *node = emit(parser, REGEX_SET, 0);
    int inverted = *parser->p == '^', first = 1, c, last;

    if (!node)
        return;
    parser->p += inverted;
    for (; first || *parser->p != ']'; first = 0) {
        if (!*parser->p) {
            parser->error = REG_EBRACK;
            return;
        }
        if (parser->p[0] == '[' && parser->p[1] == ':' && add_class(parser, node))
            continue;
        c = last = (unsigned char)*parser->p++;
        if (parser->p[0] == '-' && parser->p[1] && parser->p[1] != ']') {
            last = (unsigned char)parser->p[1];
            parser->p += 2;
        }
        for (; c <= last; c++)
            add(node, c, parser->regex->flags & REG_ICASE);
    }
    parser->p++;
    for (c = 0; inverted && c < 32; c++)
        node->set[c] = ~node->set[c];
    if (inverted && parser->regex->flags & REG_NEWLINE)
        node->set['\n' / 8] &= ~(1 << '\n' % 8);
}

/* Whether this special sign follows: bare in extended expressions, behind a backslash in basic ones. */
static int at_special(const struct parser *parser, char sign)
{
    if (parser->extended)
        return *parser->p == sign;
    return parser->p[0] == '\\' && parser->p[1] == sign;
}

static int take_special(struct parser *parser, char sign)
{
    if (!at_special(parser, sign))
        return 0;
    parser->p += parser->extended ? 1 : 2;
    return 1;
}

static void parse_group(struct parser *parser)
{
    int group = ++parser->regex->re_nsub;

    if (++parser->depth > DEPTH_MAX) {
        parser->error = REG_ESPACE;
        return;
    }
    if (group < REGEX_GROUPS)
        emit(parser, REGEX_SAVE, 2 * group);
    parse_alternatives(parser);
    if (!parser->error && !take_special(parser, ')'))
        parser->error = REG_EPAREN;
    if (group < REGEX_GROUPS)
        emit(parser, REGEX_SAVE, 2 * group + 1);
    parser->depth--;
}

static void class_set(struct parser *parser, char kind)
{
    struct regex_node *node = emit(parser, REGEX_SET, 0);
    int c;

    for (c = 0; node && c < 256; c++)
        if ((tolower(kind) == 'w' ? isalnum(c) || c == '_' : isspace(c)) == !!islower(kind))
            add(node, c, 0);
}

static void parse_escape(struct parser *parser)
{
    int c = (unsigned char)*parser->p++;

    if (!c) {
        parser->p--;
        parser->error = REG_BADPAT;
    } else if (c >= '1' && c <= '9') {
        emit(parser, REGEX_BACK, c - '0');
    } else if (c == '<' || c == '>' || c == 'b') {
        emit(parser, REGEX_WORD, c == '<' ? 0 : c == '>' ? 1 : 2);
    } else if (strchr("wWsS", c)) {
        class_set(parser, c);
    } else {
        emit(parser, REGEX_CHARACTER, c == 'n' ? '\n' : c == 't' ? '\t' : c);
    }
}

/* Whether a $ here is an anchor in a basic expression. */
static int at_end(const struct parser *parser)
{
    return !parser->p[1] || (parser->p[1] == '\\' && (parser->p[2] == ')' || parser->p[2] == '|'));
}

static void parse_atom(struct parser *parser, int first)
{
    if (take_special(parser, '(')) {
        parse_group(parser);
        return;
    }
    switch (*parser->p) {
    case '.':
        parser->p++;
        emit(parser, REGEX_ANY, 0);
        return;
    case '[':
        parser->p++;
        parse_set(parser);
        return;
    case '\\':
        parser->p++;
        parse_escape(parser);
        return;
    case '^':
        if (parser->extended || first) {
            parser->p++;
            emit(parser, REGEX_START, 0);
            return;
        }
        break;
    case '$':
        if (parser->extended || at_end(parser)) {
            parser->p++;
            emit(parser, REGEX_END, 0);
            return;
        }
        break;
    }
    emit(parser, REGEX_CHARACTER, (unsigned char)*parser->p++);
}

static int parse_count(struct parser *parser, int missing)
{
    int count = 0;

    if (!isdigit((unsigned char)*parser->p))
        return missing;
    for (; isdigit((unsigned char)*parser->p); parser->p++)
        if (count < 1000)
            count = count * 10 + *parser->p - '0';
    return count;
}

static void parse_bounds(struct parser *parser, int at)
{
    int low = parse_count(parser, 0), high = low;

    if (*parser->p == ',') {
        parser->p++;
        high = parse_count(parser, -1);
    }
    if (!take_special(parser, '}') || low > 255 || high > 255 || (high >= 0 && high < low))
        parser->error = REG_BADBR;
    else
        repeat(parser, at, low, high);
}

/* The signs of repetition behind an atom. */
static void parse_repetition(struct parser *parser, int at)
{
    while (!parser->error) {
        if (*parser->p == '*') {
            parser->p++;
            make_star(parser, at);
        } else if (take_special(parser, '+')) {
            repeat(parser, at, 1, -1);
        } else if (take_special(parser, '?')) {
            make_optional(parser, at);
        } else if (take_special(parser, '{')) {
            parse_bounds(parser, at);
        } else {
            return;
        }
    }
}

static void parse_branch(struct parser *parser)
{
    int first = 1;

    while (!parser->error && *parser->p && !at_special(parser, '|') &&
           !(at_special(parser, ')') && (parser->depth || !parser->extended))) {
        int at = parser->regex->used, anchor = *parser->p == '^';

        if (first && *parser->p == '*') {
            parser->p++;
            emit(parser, REGEX_CHARACTER, '*');
        } else {
            parse_atom(parser, first);
        }
        first = first && anchor && !parser->extended;
        if (!first)
            parse_repetition(parser, at);
    }
}

static void parse_alternatives(struct parser *parser)
{
    regex_t *regex = parser->regex;
    int start = regex->used, jump, first = -1;

    for (;;) {
        parse_branch(parser);
        if (parser->error || !take_special(parser, '|'))
            break;
        emit_at(parser, start, REGEX_SPLIT, 1, regex->used - start + 2);
        /* Jumps to the end, chained by their distances until the end is known. */
        emit(parser, REGEX_JUMP, first < 0 ? 0 : regex->used - first);
        first = regex->used - 1;
        start = regex->used;
    }
    while (!parser->error && first >= 0) {
        jump = first;
        first = regex->nodes[jump].a ? jump - regex->nodes[jump].a : -1;
        regex->nodes[jump].a = regex->used - jump;
    }
}

int regcomp(regex_t *regex, const char *pattern, int flags)
{
    struct parser parser = { regex, pattern, pattern, flags & REG_EXTENDED, 0, 0 };

    memset(regex, 0, sizeof *regex);
    regex->flags = flags;
    emit(&parser, REGEX_SAVE, 0);
    parse_alternatives(&parser);
    if (!parser.error && *parser.p)
        parser.error = REG_EPAREN;
    emit(&parser, REGEX_SAVE, 1);
    emit(&parser, REGEX_MATCH, 0);
    if (parser.error)
        regfree(regex);
    return parser.error;
}

void regfree(regex_t *regex)
{
    free(regex->nodes);
    regex->nodes = NULL;
}

size_t regerror(int error, const regex_t *regex, char *to, size_t bytes)
{
    const char *text = "bad regular expression";

    (void)regex;
    if (error == REG_NOMATCH)
        text = "no match";
    else if (error == REG_EPAREN)
        text = "unmatched parenthesis";
    else if (error == REG_EBRACK)
        text = "unmatched [";
    else if (error == REG_BADBR)
        text = "bad bounds of a repetition";
    else if (error == REG_ESPACE)
        text = "regular expression too large";
    return snprintf(to, bytes, "%s", text) + 1;
}
