/* Memory and strings. */

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* String instructions: short, and fast on every processor since the Pentium Pro. */
void *memcpy(void *to, const void *from, size_t bytes)
{
    void *d = to;
    size_t words = bytes / 4, rest = bytes % 4;

    __asm__ volatile("cld; rep movsl; mov %3, %2; rep movsb"
                     : "+&D"(d), "+&S"(from), "+&c"(words) : "r"(rest) : "memory");
    return to;
}

void *memmove(void *to, const void *from, size_t bytes)
{
    char *d = (char *)to + bytes;
    const char *s = (const char *)from + bytes;

    if ((uintptr_t)to - (uintptr_t)from >= bytes)
        return memcpy(to, from, bytes);
    while (bytes--)
        *--d = *--s;
    return to;
}

void *memset(void *to, int byte, size_t bytes)
{
    void *d = to;
    size_t words = bytes / 4, rest = bytes % 4;
    uint32_t pattern = (uint8_t)byte * 0x01010101u;

    __asm__ volatile("cld; rep stosl; mov %2, %1; rep stosb"
                     : "+&D"(d), "+&c"(words) : "r"(rest), "a"(pattern) : "memory");
    return to;
}

void *mempcpy(void *to, const void *from, size_t bytes)
{
    return (char *)memcpy(to, from, bytes) + bytes;
}

int memcmp(const void *a, const void *b, size_t bytes)
{
    const uint8_t *x = a, *y = b;

    for (; bytes; bytes--, x++, y++)
        if (*x != *y)
            return *x - *y;
    return 0;
}

void *memchr(const void *in, int byte, size_t bytes)
{
    const uint8_t *p = in;

    for (; bytes; bytes--, p++)
        if (*p == (uint8_t)byte)
            return (void *)p;
    return NULL;
}

void *memrchr(const void *in, int byte, size_t bytes)
{
    const uint8_t *p = in;

    while (bytes--)
        if (p[bytes] == (uint8_t)byte)
            return (void *)(p + bytes);
    return NULL;
}

void *memmem(const void *in, size_t bytes, const void *sought, size_t sought_bytes)
{
    const char *p = in;

    for (; bytes >= sought_bytes; p++, bytes--)
        if (!memcmp(p, sought, sought_bytes))
            return (void *)p;
    return NULL;
}

void bzero(void *to, size_t bytes)
{
    memset(to, 0, bytes);
}

size_t strlen(const char *s)
{
    const char *end = s;

    while (*end)
        end++;
    return end - s;
}

size_t strnlen(const char *s, size_t most)
{
    const char *end = memchr(s, 0, most);

    return end ? (size_t)(end - s) : most;
}

char *stpcpy(char *to, const char *from)
{
    while ((*to = *from++) != 0)
        to++;
    return to;
}

char *strcpy(char *to, const char *from)
{
    stpcpy(to, from);
    return to;
}

char *strncpy(char *to, const char *from, size_t bytes)
{
    size_t length = strnlen(from, bytes);

    memcpy(to, from, length);
    memset(to + length, 0, bytes - length);
    return to;
}

char *strcat(char *to, const char *from)
{
    stpcpy(to + strlen(to), from);
    return to;
}

char *strncat(char *to, const char *from, size_t most)
{
    char *end = to + strlen(to);
    size_t length = strnlen(from, most);

    memcpy(end, from, length);
    end[length] = 0;
    return to;
}

size_t strlcpy(char *to, const char *from, size_t bytes)
{
    size_t length = strlen(from), copied = length < bytes ? length : bytes - 1;

    if (bytes) {
        memcpy(to, from, copied);
        to[copied] = 0;
    }
    return length;
}

size_t strlcat(char *to, const char *from, size_t bytes)
{
    size_t there = strnlen(to, bytes);

    return there + strlcpy(to + there, from, bytes - there);
}

int strncmp(const char *a, const char *b, size_t most)
{
    for (; most; most--, a++, b++)
        if (*a != *b || !*a)
            return (uint8_t)*a - (uint8_t)*b;
    return 0;
}

int strcmp(const char *a, const char *b)
{
    return strncmp(a, b, SIZE_MAX);
}

int strcoll(const char *a, const char *b)
{
    return strcmp(a, b);
}

int strncasecmp(const char *a, const char *b, size_t most)
{
    for (; most; most--, a++, b++)
        if (tolower((uint8_t)*a) != tolower((uint8_t)*b) || !*a)
            return tolower((uint8_t)*a) - tolower((uint8_t)*b);
    return 0;
}

int strcasecmp(const char *a, const char *b)
{
    return strncasecmp(a, b, SIZE_MAX);
}

char *strchrnul(const char *s, int c)
{
    while (*s && *s != (char)c)
        s++;
    return (char *)s;
}

char *strchr(const char *s, int c)
{
    s = strchrnul(s, c);
    return *s == (char)c ? (char *)s : NULL;
}

char *strrchr(const char *s, int c)
{
    return memrchr(s, c, strlen(s) + 1);
}

char *strstr(const char *s, const char *sought)
{
    return memmem(s, strlen(s), sought, strlen(sought));
}

char *strcasestr(const char *s, const char *sought)
{
    size_t length = strlen(sought);

    for (; strncasecmp(s, sought, length); s++)
        if (!*s)
            return NULL;
    return (char *)s;
}

size_t strspn(const char *s, const char *set)
{
    size_t n = 0;

    while (s[n] && strchr(set, s[n]))
        n++;
    return n;
}

size_t strcspn(const char *s, const char *set)
{
    size_t n = 0;

    while (!strchr(set, s[n]))
        n++;
    return n;
}

char *strpbrk(const char *s, const char *set)
{
    s += strcspn(s, set);
    return *s ? (char *)s : NULL;
}

char *strsep(char **s, const char *separators)
{
    char *start = *s;

    if (!start)
        return NULL;
    *s = strpbrk(start, separators);
    if (*s)
        *(*s)++ = 0;
    return start;
}

char *strtok_r(char *s, const char *separators, char **rest)
{
    if (!s)
        s = *rest;
    if (!s)
        return NULL;
    s += strspn(s, separators);
    *rest = *s ? s : NULL;
    return *s ? strsep(rest, separators) : NULL;
}

char *strtok(char *s, const char *separators)
{
    static char *rest;

    return strtok_r(s, separators, &rest);
}

char *strndup(const char *s, size_t most)
{
    size_t length = strnlen(s, most);
    char *copy = malloc(length + 1);

    if (copy) {
        memcpy(copy, s, length);
        copy[length] = 0;
    }
    return copy;
}

char *strdup(const char *s)
{
    return strndup(s, SIZE_MAX - 1);
}

int ffs(int bits)
{
    int n = 1;

    if (!bits)
        return 0;
    for (; !(bits & 1); bits >>= 1)
        n++;
    return n;
}
