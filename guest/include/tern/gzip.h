/* Compressed files: gzip (RFC 1952) around deflate (RFC 1951). */

#ifndef TERN_GZIP_H
#define TERN_GZIP_H

#include <stddef.h>
#include <stdio.h>

/* Takes what has been expanded; returns whether that failed, which ends the work. */
typedef int gzip_take(void *context, const void *bytes, size_t count);

/* Expands all members of a compressed file. Returns NULL, or what is wrong. Then what was taken may be wrong,
   too: whoever took it into a file removes that. */
const char *gzip_expand(FILE *from, gzip_take *take, void *context);

#endif
