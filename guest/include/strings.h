/* Strings without regard to case, and bits. */

#ifndef STRINGS_H
#define STRINGS_H

#include <stddef.h>

int strcasecmp(const char *a, const char *b);
int strncasecmp(const char *a, const char *b, size_t most);
char *strcasestr(const char *s, const char *sought);
int ffs(int bits);
void bzero(void *to, size_t bytes);

#endif
