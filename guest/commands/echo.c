/* echo [-n] [WORD...]: the words, with a newline unless there is -n. The shell has its own; this is for other
   commands. */

#include <string.h>
#include <tern/files.h>

int main(int argc, char **argv)
{
    int without = argc > 1 && strcmp(argv[1], "-n") == 0, failed = 0;
    for (int i = 1 + without; i < argc; i++) {
        failed |= write_all(1, argv[i], strlen(argv[i]));
        if (i + 1 < argc)
            failed |= write_all(1, " ", 1);
    }
    if (!without)
        failed |= write_all(1, "\n", 1);
    return failed != 0;
}
