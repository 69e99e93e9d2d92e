/* sync: writes all changes to disks. */

#include <unistd.h>

int main(void)
{
    sync();
    return 0;
}
