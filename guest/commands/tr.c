/* tr [-d] SET1 [SET2]: replaces characters, or deletes them; sets may have ranges (a-z) and \n, \t, \\. */

#include <stdio.h>
#include <string.h>

#define SET 512

static int take(const char **text)
{
    int c = (unsigned char)*(*text)++;
    if (c != '\\' || !**text)
        return c;
    c = (unsigned char)*(*text)++;
    return c == 'n' ? '\n' : c == 't' ? '\t' : c;
}

/* Returns how many characters the set has. */
static int expand(const char *text, unsigned char *set)
{
    int count = 0;
    while (*text && count < SET) {
        int first = take(&text), last = first;
        if (text[0] == '-' && text[1]) {
            text++;
            last = take(&text);
        }
        for (; first <= last && count < SET; first++)
            set[count++] = first;
    }
    return count;
}

int main(int argc, char **argv)
{
    static unsigned char from[SET], to[SET];
    int delete = argc > 1 && strcmp(argv[1], "-d") == 0, map[256], c;
    if (argc != 3) {
        fprintf(stderr, "usage: tr [-d] SET1 [SET2]\n");
        return 2;
    }
    int count = expand(argv[delete ? 2 : 1], from), targets = delete ? 0 : expand(argv[2], to);
    if (!delete && !targets) {
        fprintf(stderr, "tr: the second set is empty\n");
        return 2;
    }
    for (int i = 0; i < 256; i++)
        map[i] = i;
    for (int i = 0; i < count; i++)
        map[from[i]] = delete ? -1 : to[i < targets ? i : targets - 1];
    while ((c = getchar()) != EOF)
        if (map[c] >= 0)
            putchar(map[c]);
    return 0;
}
