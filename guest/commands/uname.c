/* uname [-a]: the name of the system, with -a also what it runs on. */

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    puts(argc > 1 && strcmp(argv[1], "-a") == 0 ? "Tern tern 1.0 i686" : "Tern");
    return 0;
}
