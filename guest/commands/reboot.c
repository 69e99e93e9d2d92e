/* reboot [off|reset|exit STATUS]: writes all changes, then ends the machine; without an argument it restarts.
   `exit` tells an emulator the status by the debug exit device. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "reset";
    int result = -1;
    errno = EINVAL;
    if (strcmp(how, "off") == 0)
        result = reboot(ABORT_OFF, 0);
    else if (strcmp(how, "reset") == 0)
        result = reboot(ABORT_RESET, 0);
    else if (strcmp(how, "exit") == 0)
        result = reboot(ABORT_DEBUG_EXIT, argc > 2 ? atoi(argv[2]) : 0);
    fprintf(stderr, "reboot: %s\n", strerror(errno));
    return result ? 1 : 0;
}
