/* cat [FILE...]: copies files, or standard input, to standard output. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char buffer[65536];

static int copy(int fd, const char *name)
{
    ssize_t got;
    while ((got = read(fd, buffer, sizeof buffer)) > 0) {
        for (ssize_t done = 0, part; done < got; done += part) {
            part = write(1, buffer + done, got - done);
            if (part <= 0) {
                perror("cat: standard output");
                return 1;
            }
        }
    }
    if (got < 0)
        fprintf(stderr, "cat: %s: %s\n", name, strerror(errno));
    return got < 0;
}

int main(int argc, char **argv)
{
    int failed = argc == 1 ? copy(0, "standard input") : 0;
    for (int i = 1; i < argc; i++) {
        int fd = strcmp(argv[i], "-") == 0 ? 0 : open(argv[i], O_RDONLY);
        if (fd < 0) {
            fprintf(stderr, "cat: %s: %s\n", argv[i], strerror(errno));
            failed = 1;
            continue;
        }
        failed |= copy(fd, argv[i]);
        if (fd)
            close(fd);
    }
    return failed;
}
