/* Buffered files from inside. A buffer holds bytes read ahead, or bytes to write, never both. */

#ifndef FILE_H
#define FILE_H

#include <stdio.h>

#define FILE_READ 1
#define FILE_WRITE 2
#define FILE_APPEND 4
#define FILE_EOF 8
#define FILE_ERROR 16
#define FILE_WRITING 32      /* the buffer holds bytes to write */
#define FILE_OWN_BUFFER 64   /* from malloc */
#define FILE_STATIC 128

struct file {
    int descriptor;
    unsigned flags;
    int mode;                /* _IOFBF, _IOLBF, _IONBF; -1: not decided */
    char *buffer;
    size_t room, at, end;    /* the next byte, and the end of those read ahead */
    int pid;                 /* of popen's child */
    struct file *next;
};

/* Fills an empty buffer; returns EOF at the end and at errors. */
int file_fill(FILE *f);

/* Makes the file ready to write. */
int file_start_writing(FILE *f);

/* Appends to the buffer, without regard to the mode. */
size_t file_append(FILE *f, const char *from, size_t bytes);

/* What the mode asks for after bytes were appended. */
int file_settle(FILE *f, const char *from, size_t bytes);

/* open's flags for a mode of fopen, or -1. */
int file_flags(const char *mode);

#endif
