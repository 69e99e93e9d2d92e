/* Kinds of characters: ASCII. */

#include <ctype.h>

int isascii(int c)
{
    return (unsigned)c < 128;
}

int isupper(int c)
{
    return c >= 'A' && c <= 'Z';
}

int islower(int c)
{
    return c >= 'a' && c <= 'z';
}

int isalpha(int c)
{
    return isupper(c) || islower(c);
}

int isdigit(int c)
{
    return c >= '0' && c <= '9';
}

int isxdigit(int c)
{
    return isdigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

int isalnum(int c)
{
    return isalpha(c) || isdigit(c);
}

int isblank(int c)
{
    return c == ' ' || c == '\t';
}

int isspace(int c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

int iscntrl(int c)
{
    return (unsigned)c < ' ' || c == 127;
}

int isprint(int c)
{
    return c >= ' ' && c < 127;
}

int isgraph(int c)
{
    return c > ' ' && c < 127;
}

int ispunct(int c)
{
    return isgraph(c) && !isalnum(c);
}

int tolower(int c)
{
    return isupper(c) ? c + 32 : c;
}

int toupper(int c)
{
    return islower(c) ? c - 32 : c;
}
