/* poweroff: writes all changes and switches the machine off. */

#include <stdio.h>
#include <sys/reboot.h>

int main(void)
{
    reboot(ABORT_OFF, 0);
    perror("poweroff");
    return 1;
}
