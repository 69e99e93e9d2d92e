/* seq [FIRST [STEP]] LAST: numbers, a line each. */

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: seq [FIRST [STEP]] LAST\n");
        return 2;
    }
    long long last = atoll(argv[argc - 1]), step = argc == 4 ? atoll(argv[2]) : 1;
    long long number = argc > 2 ? atoll(argv[1]) : 1;
    if (step == 0) {
        fprintf(stderr, "seq: the step is 0\n");
        return 2;
    }
    for (; step > 0 ? number <= last : number >= last; number += step)
        printf("%lld\n", number);
    return 0;
}
