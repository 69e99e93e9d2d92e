/* sleep SECONDS: waits; fractions are allowed. */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv)
{
    char *end;
    double seconds = argc == 2 ? strtod(argv[1], &end) : -1;
    if (seconds < 0 || *end || seconds > 1e9) {
        fprintf(stderr, "usage: sleep SECONDS\n");
        return 2;
    }
    struct timespec length = {.tv_sec = (time_t)seconds};
    length.tv_nsec = (long)((seconds - (double)length.tv_sec) * 1e9);
    return nanosleep(&length, NULL) ? 1 : 0;
}
