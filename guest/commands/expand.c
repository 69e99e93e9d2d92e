/* expand [-i] [-t COLUMNS] [FILE...]: spaces instead of tabs, which are at each 8th or COLUMNSth column; -i,
   only of those at the beginnings of lines. */

#include <stdlib.h>
#include <tern/command.h>
#include <unistd.h>

static long columns = 8;
static int only_first;

static void expand(FILE *file, const char *name)
{
    long column = 0;
    int c, text = 0;
    (void)name;
    while ((c = getc(file)) != EOF) {
        if (c == '\t' && !(only_first && text)) {
            do
                putchar(' ');
            while (++column % columns);
            continue;
        }
        putchar(c);
        column = c == '\n' ? 0 : c == '\b' ? column - (column > 0) : column + 1;
        text = c != '\n' && (text || c != ' ');
    }
}

int main(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "it:")) != -1) {
        only_first |= option == 'i';
        if (option == 't')
            columns = atol(optarg);
        if (option == '?' || columns < 1)
            return usage("expand [-i] [-t COLUMNS] [FILE...]");
    }
    return each_operand(argc - optind, argv + optind, expand);
}
