/* strings [-n LENGTH] [FILE...]: the printable strings in files, of at least 4 or LENGTH characters. */

#include <ctype.h>
#include <stdlib.h>
#include <tern/command.h>
#include <unistd.h>

static long least = 4;
static char *kept;

static void show(FILE *file, const char *name)
{
    long count = 0;
    int c;
    (void)name;
    do {
        c = getc(file);
        if (c != EOF && (isprint(c) || c == '\t')) {
            if (count < least)
                kept[count] = (char)c;
            if (++count == least)
                fwrite(kept, 1, least, stdout);
            else if (count > least)
                putchar(c);
            continue;
        }
        if (count >= least)
            putchar('\n');
        count = 0;
    } while (c != EOF);
}

int main(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "n:")) != -1) {
        if (option == 'n')
            least = atol(optarg);
        if (option == '?' || least < 1 || least > 65536)
            return usage("strings [-n LENGTH] [FILE...]");
    }
    kept = need(NULL, least);
    return each_operand(argc - optind, argv + optind, show);
}
