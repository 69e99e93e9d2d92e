/* mkdir [-p] DIRECTORY...: makes directories, with -p those above them too. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int make_all(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int result = mkdir(path, 0777);
        *slash = '/';
        if (result && errno != EEXIST)
            return -1;
    }
    return mkdir(path, 0777) && errno != EEXIST ? -1 : 0;
}

int main(int argc, char **argv)
{
    int all = argc > 1 && strcmp(argv[1], "-p") == 0, failed = 0;
    for (int i = 1 + all; i < argc; i++) {
        if (all ? make_all(argv[i]) : mkdir(argv[i], 0777)) {
            fprintf(stderr, "mkdir: %s: %s\n", argv[i], strerror(errno));
            failed = 1;
        }
    }
    return failed;
}
