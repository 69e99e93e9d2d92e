/* Patterns of the shell. A star is tried again with one character more; only the last one needs that. */

#include <ctype.h>
#include <fnmatch.h>
#include <string.h>

static const char *const class_names[] = { "alpha", "digit", "alnum", "upper", "lower", "space",
                                           "blank", "punct", "xdigit", "print", "cntrl", "graph" };
static int (*const class_tests[])(int) = { isalpha, isdigit, isalnum, isupper, islower, isspace,
                                           isblank, ispunct, isxdigit, isprint, iscntrl, isgraph };

/* [:name:] at p; returns the place behind it, or NULL. */
static const char *match_class(const char *p, int c, int *matched)
{
    const char *end = strstr(p + 2, ":]");
    size_t i;

    for (i = 0; end && i < sizeof class_names / sizeof *class_names; i++)
        if (strlen(class_names[i]) == (size_t)(end - p - 2) && !strncmp(class_names[i], p + 2, end - p - 2)) {
            *matched |= class_tests[i](c) != 0;
            return end + 2;
        }
    return NULL;
}

/* A bracket expression at p, behind its "["; returns the place behind it, or NULL if it has no end. */
static const char *match_bracket(const char *p, int c, int flags, int *matched)
{
    int inverted = *p == '!' || *p == '^', first = 1;

    p += inverted;
    *matched = 0;
    for (; first || *p != ']'; first = 0) {
        unsigned char low, high;
        const char *behind;

        if (p[0] == '[' && p[1] == ':' && (behind = match_class(p, c, matched)) != NULL) {
            p = behind;
            continue;
        }
        if (*p == '\\' && !(flags & FNM_NOESCAPE))
            p++;
        if (!*p)
            return NULL;
        low = high = *p++;
        if (p[0] == '-' && p[1] && p[1] != ']') {
            p++;
            if (*p == '\\' && !(flags & FNM_NOESCAPE) && p[1])
                p++;
            high = *p++;
        }
        *matched |= c >= low && c <= high;
    }
    *matched ^= inverted;
    return p + 1;
}

/* One character against the pattern's next part; returns the place behind that, or NULL. */
static const char *match_one(const char *p, int c, int flags)
{
    const char *behind;
    int matched;

    if (*p == '?')
        return c == '/' && flags & FNM_PATHNAME ? NULL : p + 1;
    if (*p == '[' && (behind = match_bracket(p + 1, c, flags, &matched)) != NULL)
        return matched && !(c == '/' && flags & FNM_PATHNAME) ? behind : NULL;
    if (*p == '\\' && p[1] && !(flags & FNM_NOESCAPE))
        p++;
    return *p && (unsigned char)*p == c ? p + 1 : NULL;
}

int fnmatch(const char *pattern, const char *s, int flags)
{
    const char *star = NULL, *tried = NULL, *next, *start = s;

    for (;;) {
        if (*s == '.' && flags & FNM_PERIOD && (s == start || (flags & FNM_PATHNAME && s[-1] == '/')) &&
            *pattern != '.' && !(*pattern == '\\' && pattern[1] == '.'))
            return FNM_NOMATCH;
        if (*pattern == '*') {
            star = ++pattern;
            tried = s;
            continue;
        }
        if (!*s && !*pattern)
            return 0;
        next = *s ? match_one(pattern, (unsigned char)*s, flags) : NULL;
        if (next) {
            pattern = next;
            s++;
            continue;
        }
        if (!star || !*tried || (*tried == '/' && flags & FNM_PATHNAME))
            return FNM_NOMATCH;
        s = ++tried;
        pattern = star;
    }
}
