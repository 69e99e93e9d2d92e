/* Regular expressions: the matcher.

   It tries alternatives one after another. Each pair of a node and a place is visited once: it either led to
   a match before or it cannot. So the time grows with the product of their numbers, not with its power. Only
   references back to groups need to visit a pair again; they have a limit of steps. */

#include <ctype.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include "regexnode.h"

#define SLOTS (2 * REGEX_GROUPS)
#define STEPS_MAX 2000000
#define MEMORY_MAX (16u << 20)

/* What to do when the present way fails: go on at a node and place, or (node < 0) give slot ~node its value
   back. */
struct choice {
    int node, place;
};

struct matcher {
    const regex_t *regex;
    const char *s;
    int length, flags, steps, failed;
    unsigned char *visited;
    struct choice *choices;
    int used, room;
    int slot[SLOTS], best[SLOTS];
};

static int is_word(const struct matcher *m, int place)
{
    return place >= 0 && place < m->length && (isalnum((unsigned char)m->s[place]) || m->s[place] == '_');
}

static void push(struct matcher *m, int node, int place)
{
    if (m->used == m->room) {
        int room = m->room * 2 + 64;
        struct choice *choices = room > (int)(MEMORY_MAX / sizeof *choices)
                                     ? NULL : realloc(m->choices, room * sizeof *choices);

        if (!choices) {
            m->failed = 1;
            return;
        }
        m->choices = choices;
        m->room = room;
    }
    m->choices[m->used].node = node;
    m->choices[m->used++].place = place;
}

/* Whether this pair is new. */
static int visit(struct matcher *m, int node, int place)
{
    size_t bit = (size_t)node * (m->length + 1) + place;

    if (!m->visited)
        return ++m->steps < STEPS_MAX;
    if (m->visited[bit / 8] >> bit % 8 & 1)
        return 0;
    m->visited[bit / 8] |= 1 << bit % 8;
    return 1;
}

static int matches_here(struct matcher *m, const struct regex_node *node, int place)
{
    int before = is_word(m, place - 1), after = is_word(m, place), newline = m->regex->flags & REG_NEWLINE;

    switch (node->operation) {
    case REGEX_START:
        return place ? newline && m->s[place - 1] == '\n' : !(m->flags & REG_NOTBOL);
    case REGEX_END:
        return place < m->length ? newline && m->s[place] == '\n' : !(m->flags & REG_NOTEOL);
    case REGEX_WORD:
        return node->a == 0 ? !before && after : node->a == 1 ? before && !after : before != after;
    }
    return 1;
}

/* How many characters the node takes at the place, or -1. */
static int take(struct matcher *m, const struct regex_node *node, int place)
{
    int c = place < m->length ? (unsigned char)m->s[place] : -1, bytes;
    int icase = m->regex->flags & REG_ICASE;

    switch (node->operation) {
    case REGEX_CHARACTER:
        return c == node->a || (icase && c >= 0 && tolower(c) == tolower(node->a)) ? 1 : -1;
    case REGEX_ANY:
        return c >= 0 && !(c == '\n' && m->regex->flags & REG_NEWLINE) ? 1 : -1;
    case REGEX_SET:
        return c >= 0 && node->set[c / 8] >> c % 8 & 1 ? 1 : -1;
    case REGEX_BACK:
        bytes = m->slot[2 * node->a + 1] - m->slot[2 * node->a];
        if (m->slot[2 * node->a] < 0 || bytes < 0 || bytes > m->length - place)
            return -1;
        return memcmp(m->s + m->slot[2 * node->a], m->s + place, bytes) ? -1 : bytes;
    }
    return matches_here(m, node, place) ? 0 : -1;
}

/* Follows one way until it fails or matches. */
static void follow(struct matcher *m, int node, int place)
{
    while (!m->failed && visit(m, node, place)) {
        const struct regex_node *n = &m->regex->nodes[node];
        int taken;

        switch (n->operation) {
        case REGEX_SPLIT:
            push(m, node + n->b, place);
            node += n->a;
            break;
        case REGEX_JUMP:
            node += n->a;
            break;
        case REGEX_SAVE:
            push(m, ~n->a, m->slot[n->a]);
            m->slot[n->a] = place;
            node++;
            break;
        case REGEX_MATCH:
            if (place > m->best[1])
                memcpy(m->best, m->slot, sizeof m->best);
            return;
        default:
            taken = take(m, n, place);
            if (taken < 0)
                return;
            place += taken;
            node++;
        }
    }
}

/* All ways from a place; the longest match remains in `best`. */
static int match_at(struct matcher *m, int place)
{
    memset(m->slot, 0xff, sizeof m->slot);
    memset(m->best, 0xff, sizeof m->best);
    follow(m, 0, place);
    while (m->used && !m->failed) {
        struct choice choice = m->choices[--m->used];

        if (choice.node < 0)
            m->slot[~choice.node] = choice.place;
        else
            follow(m, choice.node, choice.place);
    }
    return m->best[1] >= 0;
}

static int search(struct matcher *m)
{
    const struct regex_node *first = &m->regex->nodes[1];
    int place;

    for (place = 0; place <= m->length && !m->failed; place++) {
        if (first->operation == REGEX_CHARACTER && !(m->regex->flags & REG_ICASE)) {
            const char *next = memchr(m->s + place, first->a, m->length - place);

            if (!next)
                return 0;
            place = next - m->s;
        }
        if (match_at(m, place))
            return 1;
    }
    return 0;
}

static int has_references(const regex_t *regex)
{
    int i;

    for (i = 0; i < regex->used; i++)
        if (regex->nodes[i].operation == REGEX_BACK)
            return 1;
    return 0;
}

int regexec(const regex_t *regex, const char *s, size_t matches, regmatch_t match[], int flags)
{
    struct matcher m = { regex, s, strlen(s), flags, 0, 0, NULL, NULL, 0, 0, { 0 }, { 0 } };
    size_t bits = (size_t)regex->used * (m.length + 1), i;
    int found;

    if (!has_references(regex)) {
        if (bits / regex->used != (size_t)m.length + 1 || bits / 8 > MEMORY_MAX)
            return REG_ESPACE;
        m.visited = calloc(bits / 8 + 1, 1);
        if (!m.visited)
            return REG_ESPACE;
    }
    found = search(&m);
    free(m.visited);
    free(m.choices);
    if (!found)
        return REG_NOMATCH;
    for (i = 0; match && !(regex->flags & REG_NOSUB) && i < matches; i++) {
        match[i].rm_so = i < REGEX_GROUPS ? m.best[2 * i] : -1;
        match[i].rm_eo = i < REGEX_GROUPS ? m.best[2 * i + 1] : -1;
    }
    return 0;
}
