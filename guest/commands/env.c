/* env [NAME=VALUE...] [COMMAND...]: shows the environment, or executes a command in a changed one. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int i = 1;
    for (; i < argc && strchr(argv[i], '='); i++)
        putenv(argv[i]);
    if (i < argc) {
        execvp(argv[i], argv + i);
        fprintf(stderr, "env: %s: %s\n", argv[i], strerror(errno));
        return 127;
    }
    for (char **entry = environ; *entry; entry++)
        puts(*entry);
    return 0;
}
