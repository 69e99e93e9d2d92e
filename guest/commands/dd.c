/* dd [if=FILE] [of=FILE] [bs=BYTES] [count=BLOCKS] [skip=BLOCKS] [seek=BLOCKS] [conv=notrunc]: copies blocks.
   Numbers may end with k or M. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/files.h>
#include <unistd.h>

static long number(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    return *end == 'k' ? value * 1024 : *end == 'M' ? value * 1048576 : value;
}

static int fail(const char *name)
{
    fprintf(stderr, "dd: %s: %s\n", name, strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    const char *from = NULL, *to = NULL;
    long size = 512, count = -1, skip = 0, seek = 0, flags = O_TRUNC, full = 0, part = 0;
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) {
            fprintf(stderr, "dd: %s means nothing\n", argv[i]);
            return 2;
        }
        *value++ = 0;
        if (strcmp(argv[i], "if") == 0)
            from = value;
        else if (strcmp(argv[i], "of") == 0)
            to = value;
        else if (strcmp(argv[i], "bs") == 0)
            size = number(value);
        else if (strcmp(argv[i], "count") == 0)
            count = number(value);
        else if (strcmp(argv[i], "skip") == 0)
            skip = number(value);
        else if (strcmp(argv[i], "seek") == 0)
            seek = number(value);
        else if (strcmp(argv[i], "conv") == 0 && strcmp(value, "notrunc") == 0)
            flags = 0;
    }
    int in = from ? open(from, O_RDONLY) : 0;
    if (in < 0)
        return fail(from);
    int out = to ? open(to, O_WRONLY | O_CREAT | (seek ? 0 : flags), 0666) : 1;
    if (out < 0)
        return fail(to);
    char *block = size > 0 && size <= 0x1000000 ? malloc(size) : NULL;
    if (!block) {
        fprintf(stderr, "dd: bs\n");
        return 2;
    }
    if ((skip && lseek(in, skip * size, SEEK_SET) < 0) || (seek && lseek(out, seek * size, SEEK_SET) < 0))
        return fail("seek");
    while (count < 0 || full + part < count) {
        ssize_t got = read(in, block, size);
        if (got < 0)
            return fail(from ? from : "standard input");
        if (got == 0)
            break;
        if (write_all(out, block, got) < 0)
            return fail(to ? to : "standard output");
        *(got == size ? &full : &part) += 1;
    }
    fprintf(stderr, "%ld+%ld blocks\n", full, part);
    return 0;
}
