/* tar: what its files share. */

#ifndef TAR_H
#define TAR_H

#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>

#define BLOCK 512
#define RECORD 10240       /* archives are multiples of it */
#define NAME_BYTES_MAX 4096

/* A header (POSIX, pax, "ustar Interchange Format"). Numbers are octal digits. */
struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], time[12], checksum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};

/* What a header, and those before it that extend it, say of a file. */
struct member {
    char *name, *link;
    char type;             /* 0 file, 1 hard link, 2 symbolic link, 3 and 4 devices, 5 directory, 6 pipe */
    unsigned mode, device;
    uint64_t bytes;
    int64_t time;
    char user[33], group[33];
};

/* main.c. */
extern int verbose, failed;
/* The last three say "tar: NAME: TEXT" to standard error; `failed` becomes 2. */
void complain(const char *name, const char *text);
void complain_errno(const char *name);
void fatal(const char *name, const char *text) __attribute__((noreturn));

/* header.c. Both return 0 when all is right. */
int header_write(struct header *header, const char *name, const struct stat *status, const char *link);
int header_read(const struct header *header, struct member *member); /* 1: its checksum is wrong */

/* read.c: the next member of the archive; 0 at its end. Its name and link are valid until the next call. */
int member_next(FILE *archive, struct member *member);
/* Gives the contents of the member to `to`, or skips them if it is NULL. Returns whether that failed. */
int member_contents(FILE *archive, const struct member *member, FILE *to);

/* create.c, extract.c, list.c. */
void create(FILE *archive, int count, char *const names[], FILE *log);
void list_member(const struct member *member);
void extract_member(FILE *archive, const struct member *member);
void extract_end(void);

#endif
