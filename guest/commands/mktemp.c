/* mktemp [-d] [PATTERN]: makes a file, or a directory, with a new name, and prints it. The pattern ends in
   XXXXXX. */

#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char standard[] = "/tmp/tmp.XXXXXX";
    int option, directory = 0;
    while ((option = getopt(argc, argv, "d")) != -1) {
        if (option == '?')
            return usage("mktemp [-d] [PATTERN]");
        directory = 1;
    }
    char *name = optind < argc ? argv[optind] : standard;
    if (directory ? !mkdtemp(name) : mkstemp(name) < 0) {
        perror(name);
        return 1;
    }
    return puts(name) < 0;
}
