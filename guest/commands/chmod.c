/* chmod MODE FILE...: sets the mode, an octal number. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int main(int argc, char **argv)
{
    int failed = 0;
    char *end;
    unsigned long mode = argc > 2 ? strtoul(argv[1], &end, 8) : 0;
    if (argc < 3 || *end || mode > 07777) {
        fprintf(stderr, "usage: chmod MODE FILE...\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        if (chmod(argv[i], mode) == 0)
            continue;
        fprintf(stderr, "chmod: %s: %s\n", argv[i], strerror(errno));
        failed = 1;
    }
    return failed;
}
