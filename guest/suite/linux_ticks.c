/*
 * Ticks under Linux, whose own clock has a frequency that is compiled in. The periodic interrupts of /dev/rtc
 * (rtc(4)) are ticks of the timer that Linux uses for everything, without a signal; frequencies are powers of
 * two up to 8192. Where there is no such device, as on many hosts, an interval timer sends a signal for each
 * tick.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <linux/rtc.h>
#include <unistd.h>

#include "suite.h"

#define MILLION 1000000

/* The device, or NO_DEVICE before anybody has asked for it and where there is none. */
#define NO_DEVICE (-1)
static int rtc = NO_DEVICE;
static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

void set_ticks(uint32_t hz, const char *source)
{
    (void)source;
    if (rtc == NO_DEVICE && hz != 0)
        rtc = open("/dev/rtc0", O_RDONLY | O_NONBLOCK);
    if (rtc != NO_DEVICE) {
        if (hz == 0 ? ioctl(rtc, RTC_PIE_OFF, 0) != 0
                    : ioctl(rtc, RTC_IRQP_SET, (unsigned long)hz) != 0 || ioctl(rtc, RTC_PIE_ON, 0) != 0)
            fail("RTC_IRQP_SET");
        return;
    }
    struct sigaction action = {.sa_handler = count_signal};
    struct itimerval timer = {.it_interval = {0, hz == 0 ? 0 : MILLION / hz}};
    if (hz == 1)
        timer.it_interval = (struct timeval){1, 0};
    timer.it_value = timer.it_interval;
    if (sigaction(SIGALRM, &action, NULL) != 0 || setitimer(ITIMER_REAL, &timer, NULL) != 0)
        fail("setitimer");
}

/* The device counts the ticks since it was last read, above a byte with the kind of the interrupt. */
uint32_t ticks_so_far(void)
{
    static uint32_t sum;
    unsigned long ticks;
    if (rtc == NO_DEVICE)
        return (uint32_t)signals;
    if (read(rtc, &ticks, sizeof ticks) == sizeof ticks)
        sum += ticks >> 8;
    else if (errno != EAGAIN)
        fail("/dev/rtc0");
    return sum;
}
