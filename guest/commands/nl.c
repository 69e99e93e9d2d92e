/* nl [-b a|t|n] [-v FIRST] [-i STEP] [-w WIDTH] [-s SEPARATOR] [FILE...]: numbers the lines: those that are
   not empty (t), all (a) or none (n). */

#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>

static char which = 't';
static long number = 1, step = 1;
static int width = 6;
static const char *separator = "\t";

static void show(FILE *file, const char *name)
{
    char *line = NULL;
    size_t room = 0;
    (void)name;
    while (read_line(&line, &room, file) >= 0) {
        if (which == 'a' || (which == 't' && *line)) {
            printf("%*ld%s%s\n", width, number, separator, line);
            number += step;
        } else {
            printf("%*s%s\n", width + (int)strlen(separator), "", line);
        }
    }
    free(line);
}

int main(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "b:v:i:w:s:")) != -1) {
        if (option == 'b')
            which = *optarg;
        else if (option == 'v')
            number = atol(optarg);
        else if (option == 'i')
            step = atol(optarg);
        else if (option == 'w')
            width = atoi(optarg);
        else if (option == 's')
            separator = optarg;
        if (option == '?' || !which || !strchr("atn", which) || width < 1 || width > 100)
            return usage("nl [-b a|t|n] [-v FIRST] [-i STEP] [-w WIDTH] [-s SEPARATOR] [FILE...]");
    }
    return each_operand(argc - optind, argv + optind, show);
}
