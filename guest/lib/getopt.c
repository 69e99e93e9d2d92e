/* Options of programs. */

#include <getopt.h>
#include <stdio.h>
#include <string.h>

char *optarg;
int optind = 1, opterr = 1, optopt;

static int complain(const char *program, const char *text, int option)
{
    if (opterr)
        fprintf(stderr, "%s: %s -- %c\n", program, text, option);
    return '?';
}

int getopt(int count, char *const arguments[], const char *options)
{
    static int within;        /* position among options written together */
    const char *argument, *known;

    if (optind == 0) {
        optind = 1;
        within = 0;
    }
    if (!within) {
        if (optind >= count || arguments[optind][0] != '-' || !arguments[optind][1])
            return -1;
        if (!strcmp(arguments[optind], "--")) {
            optind++;
            return -1;
        }
        within = 1;
    }
    argument = arguments[optind];
    optopt = argument[within++];
    known = optopt == ':' ? NULL : strchr(options, optopt);
    if (!argument[within]) {
        optind++;
        within = 0;
    }
    if (!known)
        return complain(arguments[0], "no such option", optopt);
    if (known[1] != ':')
        return optopt;
    optarg = within ? (char *)argument + within : optind < count ? arguments[optind] : NULL;
    if (within || optarg)
        optind++;
    within = 0;
    if (!optarg) {
        if (*options == ':')
            return ':';
        return complain(arguments[0], "option needs an argument", optopt);
    }
    return optopt;
}
