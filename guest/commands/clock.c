/* clock [pit HZ | apic HZ | tickless]: shows or sets the timer that ticks, and how often a second. In tickless
   operation it interrupts only when something is due. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <tern/calls.h>
#include <tern/device.h>
#include <unistd.h>

static const char *const names[] = {
    [CLOCK_PIT] = "pit", [CLOCK_APIC] = "apic", [CLOCK_TICKLESS] = "tickless"};

/* Reads the arguments. Returns whether they mean anything. */
static int read_setting(int argc, char **argv, struct clock_setting *setting)
{
    char *end = "";
    setting->source = CLOCK_PIT;
    while (setting->source <= CLOCK_TICKLESS && strcmp(argv[1], names[setting->source]) != 0)
        setting->source++;
    setting->hz = argc > 2 ? strtoul(argv[2], &end, 10) : 0;
    int words = setting->source == CLOCK_TICKLESS ? 2 : 3;
    return setting->source <= CLOCK_TICKLESS && *end == 0 && argc == words;
}

int main(int argc, char **argv)
{
    struct clock_setting setting;
    int clock = open("/dev/clock", O_RDWR);
    if (argc > 1 && !read_setting(argc, argv, &setting)) {
        fprintf(stderr, "usage: clock [pit HZ | apic HZ | tickless], with 1 to 10000 HZ\n");
        return 2;
    }
    if (clock < 0 || ioctl(clock, argc > 1 ? CLIOCSETHZ : CLIOCGETHZ, &setting) != 0) {
        fprintf(stderr, "clock: %s\n", strerror(errno));
        return 1;
    }
    if (argc == 1 && setting.source == CLOCK_TICKLESS)
        puts("tickless");
    else if (argc == 1)
        printf("%s %u\n", names[setting.source], (unsigned)setting.hz);
    return 0;
}
