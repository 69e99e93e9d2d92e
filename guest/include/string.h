/* Memory and strings. */

#ifndef STRING_H
#define STRING_H

#include <stddef.h>

void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int byte, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);
void *memchr(const void *in, int byte, size_t bytes);
void *memrchr(const void *in, int byte, size_t bytes);
void *memmem(const void *in, size_t bytes, const void *sought, size_t sought_bytes);
void *mempcpy(void *to, const void *from, size_t bytes);
size_t strlen(const char *s);
size_t strnlen(const char *s, size_t most);
char *strcpy(char *to, const char *from);
char *stpcpy(char *to, const char *from);
char *strncpy(char *to, const char *from, size_t bytes);
char *strcat(char *to, const char *from);
char *strncat(char *to, const char *from, size_t most);
size_t strlcpy(char *to, const char *from, size_t bytes);
size_t strlcat(char *to, const char *from, size_t bytes);
int strcmp(const char *a, const char *b);
int strncmp(const char *a, const char *b, size_t most);
int strcoll(const char *a, const char *b);
char *strchr(const char *s, int c);
char *strrchr(const char *s, int c);
char *strchrnul(const char *s, int c);
char *strstr(const char *s, const char *sought);
size_t strspn(const char *s, const char *set);
size_t strcspn(const char *s, const char *set);
char *strpbrk(const char *s, const char *set);
char *strtok(char *s, const char *separators);
char *strtok_r(char *s, const char *separators, char **rest);
char *strsep(char **s, const char *separators);
char *strdup(const char *s);
char *strndup(const char *s, size_t most);
char *strerror(int error);
char *strsignal(int signal);

#endif
