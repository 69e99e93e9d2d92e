/* Memory, numbers, sorting, environment, ends of programs. */

#ifndef STDLIB_H
#define STDLIB_H

#include <stddef.h>

#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1
#define RAND_MAX 0x7fffffff

typedef struct {
    int quot, rem;
} div_t;

typedef struct {
    long quot, rem;
} ldiv_t;

typedef struct {
    long long quot, rem;
} lldiv_t;

void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *memory, size_t bytes);
void free(void *memory);

int atoi(const char *s);
long atol(const char *s);
long long atoll(const char *s);
double atof(const char *s);
long strtol(const char *s, char **end, int base);
unsigned long strtoul(const char *s, char **end, int base);
long long strtoll(const char *s, char **end, int base);
unsigned long long strtoull(const char *s, char **end, int base);
double strtod(const char *s, char **end);
float strtof(const char *s, char **end);
long double strtold(const char *s, char **end);

void qsort(void *elements, size_t count, size_t bytes, int (*compare)(const void *, const void *));
void *bsearch(const void *key, const void *elements, size_t count, size_t bytes,
              int (*compare)(const void *, const void *));

int abs(int n);
long labs(long n);
long long llabs(long long n);
div_t div(int dividend, int divisor);
ldiv_t ldiv(long dividend, long divisor);
lldiv_t lldiv(long long dividend, long long divisor);
int rand(void);
void srand(unsigned seed);
long random(void);
void srandom(unsigned seed);

char *getenv(const char *name);
int setenv(const char *name, const char *value, int overwrite);
int unsetenv(const char *name);
int putenv(char *assignment);
int clearenv(void);

int atexit(void (*function)(void));
void exit(int status) __attribute__((noreturn));
void _Exit(int status) __attribute__((noreturn));
void abort(void) __attribute__((noreturn));
int system(const char *command);
int mkstemp(char *pattern);
char *mkdtemp(char *pattern);
char *realpath(const char *path, char *resolved);

#endif
