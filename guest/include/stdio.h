/* Buffered files and formatted text. */

#ifndef STDIO_H
#define STDIO_H

#include <stdarg.h>
#include <stddef.h>
#include <sys/types.h>

#define EOF (-1)
#define BUFSIZ 4096
#define FILENAME_MAX 1024
#define FOPEN_MAX 32
#define L_tmpnam 32

#define _IOFBF 0
#define _IOLBF 1
#define _IONBF 2

#ifndef SEEK_SET
#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2
#endif

typedef struct file FILE;

extern FILE *const stdin;
extern FILE *const stdout;
extern FILE *const stderr;

FILE *fopen(const char *path, const char *mode);
FILE *fdopen(int descriptor, const char *mode);
FILE *freopen(const char *path, const char *mode, FILE *f);
FILE *popen(const char *command, const char *mode);
FILE *tmpfile(void);
int pclose(FILE *f);
int fclose(FILE *f);
int fflush(FILE *f);
int setvbuf(FILE *f, char *buffer, int mode, size_t bytes);
void setbuf(FILE *f, char *buffer);
void setlinebuf(FILE *f);
int fileno(FILE *f);
int feof(FILE *f);
int ferror(FILE *f);
void clearerr(FILE *f);

size_t fread(void *to, size_t bytes, size_t count, FILE *f);
size_t fwrite(const void *from, size_t bytes, size_t count, FILE *f);
int fseek(FILE *f, long offset, int whence);
int fseeko(FILE *f, off_t offset, int whence);
long ftell(FILE *f);
off_t ftello(FILE *f);
void rewind(FILE *f);

int fgetc(FILE *f);
int getc(FILE *f);
int getchar(void);
int ungetc(int c, FILE *f);
int fputc(int c, FILE *f);
int putc(int c, FILE *f);
int putchar(int c);
int fputs(const char *s, FILE *f);
int puts(const char *s);
char *fgets(char *line, int bytes, FILE *f);
ssize_t getline(char **line, size_t *bytes, FILE *f);
ssize_t getdelim(char **line, size_t *bytes, int delimiter, FILE *f);

int printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
int fprintf(FILE *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
int dprintf(int descriptor, const char *format, ...) __attribute__((format(printf, 2, 3)));
int sprintf(char *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
int snprintf(char *to, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
int asprintf(char **to, const char *format, ...) __attribute__((format(printf, 2, 3)));
int vprintf(const char *format, va_list list);
int vfprintf(FILE *f, const char *format, va_list list);
int vdprintf(int descriptor, const char *format, va_list list);
int vsprintf(char *to, const char *format, va_list list);
int vsnprintf(char *to, size_t bytes, const char *format, va_list list);
int vasprintf(char **to, const char *format, va_list list);

int scanf(const char *format, ...) __attribute__((format(scanf, 1, 2)));
int fscanf(FILE *f, const char *format, ...) __attribute__((format(scanf, 2, 3)));
int sscanf(const char *s, const char *format, ...) __attribute__((format(scanf, 2, 3)));
int vfscanf(FILE *f, const char *format, va_list list);
int vsscanf(const char *s, const char *format, va_list list);

void perror(const char *text);
int remove(const char *path);
int rename(const char *old, const char *new);

#endif
