/* date [+FORMAT]: shows the time, in UTC. */

#include <stdio.h>
#include <time.h>

int main(int argc, char **argv)
{
    char text[256];
    if (argc > 2 || (argc == 2 && argv[1][0] != '+')) {
        fprintf(stderr, "usage: date [+FORMAT]\n");
        return 2;
    }
    time_t now = time(NULL);
    const char *format = argc == 2 ? argv[1] + 1 : "%a %b %d %H:%M:%S UTC %Y";
    strftime(text, sizeof text, format, gmtime(&now));
    puts(text);
    return 0;
}
