/* clear: clears the screen (ECMA-48, CUP and ED). */

#include <tern/files.h>

int main(void)
{
    static const char sequence[] = "\033[H\033[2J";
    return write_all(1, sequence, sizeof sequence - 1) != 0;
}
