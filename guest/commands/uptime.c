/* uptime: how long the system has been running. */

#include <stdio.h>
#include <time.h>

int main(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now)) {
        perror("uptime");
        return 1;
    }
    long seconds = (long)now.tv_sec;
    printf("up %ld days, %ld:%02ld:%02ld\n", seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60,
           seconds % 60);
    return 0;
}
