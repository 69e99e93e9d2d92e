/* readlink [-f] [-n] PATH: what a symbolic link contains, or with -f the path without links. */

#include <stdlib.h>
#include <tern/command.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char contents[4096];
    int option, real = 0, without = 0;
    while ((option = getopt(argc, argv, "fn")) != -1) {
        if (option == '?')
            return usage("readlink [-fn] PATH");
        real |= option == 'f';
        without |= option == 'n';
    }
    if (argc - optind != 1)
        return usage("readlink [-fn] PATH");
    if (real ? !realpath(argv[optind], contents) : readlink(argv[optind], contents, sizeof contents - 1) < 0)
        return 1;
    printf(without ? "%s" : "%s\n", contents);
    return 0;
}
