/* rmdir DIRECTORY...: removes empty directories. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        if (rmdir(argv[i]) == 0)
            continue;
        fprintf(stderr, "rmdir: %s: %s\n", argv[i], strerror(errno));
        failed = 1;
    }
    return failed;
}
