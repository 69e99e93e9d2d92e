/* printf FORMAT [ARGUMENT...]: %s %d %u %x %o %c and %%, with widths; \n, \t, \\ and octal characters. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char **argument;

static const char *escape(const char *at)
{
    int value = 0, digits = 0;
    switch (*++at) {
    case 'n': putchar('\n'); return at + 1;
    case 't': putchar('\t'); return at + 1;
    case 'r': putchar('\r'); return at + 1;
    case 'a': putchar('\a'); return at + 1;
    case 'e': putchar(27); return at + 1;
    case 0: putchar('\\'); return at;
    }
    while (digits < 3 && *at >= '0' && *at <= '7') {
        value = value * 8 + *at++ - '0';
        digits++;
    }
    putchar(digits ? value : *at);
    return digits ? at : at + 1;
}

static const char *conversion(const char *at)
{
    char format[32];
    size_t length = strspn(at + 1, "-+ #0123456789.") + 1;
    char kind = at[length];
    const char *value = *argument ? *argument : "";
    if (length > sizeof format - 3 || !kind) {
        fputs(at, stdout);
        return at + strlen(at);
    }
    memcpy(format, at, length);
    if (kind == '%') {
        putchar('%');
        return at + length + 1;
    }
    if (*argument)
        argument++;
    if (strchr("diuxXo", kind)) {
        format[length] = 'l';
        format[length + 1] = kind;
        format[length + 2] = 0;
        printf(format, strtol(value, NULL, 0));
    } else if (kind == 'c') {
        putchar(*value);
    } else {
        format[length] = 's';
        format[length + 1] = 0;
        printf(format, value);
    }
    return at + length + 1;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: printf FORMAT [ARGUMENT...]\n");
        return 2;
    }
    argument = argv + 2;
    /* Once more for the arguments that are left, if the format takes some at all. */
    char **before;
    do {
        before = argument;
        for (const char *at = argv[1]; *at;) {
            if (*at == '\\')
                at = escape(at);
            else if (*at == '%')
                at = conversion(at);
            else
                putchar(*at++);
        }
    } while (*argument && argument != before);
    return 0;
}
