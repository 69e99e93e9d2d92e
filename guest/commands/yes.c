/* yes [TEXT]: a line again and again, until nobody reads it. */

#include <stdio.h>

int main(int argc, char **argv)
{
    while (puts(argc > 1 ? argv[1] : "y") >= 0)
        ;
    return 1;
}
