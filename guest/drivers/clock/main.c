/* The clock: /dev/clock, whose frequency can be set, /dev/rtc and /dev/speaker.

   For etc/services:

service clock
    program /sbin/clock
    calls devio sdevio vdevio safecopy vcopy times setclock getclock log
    send-to fs pm
    ports 70-71 42-43 61-61
    major 10 0 2

   At its start it tells PM the time. Minor numbers are in tern/device.h. */

#include <stdio.h>
#include <string.h>
#include <tern/lib.h>
#include <tern/pm.h>
#include "../common/character.h"
#include "../common/driver.h"
#include "clock.h"

#define MILLION 1000000u
#define WRITE_MAX 512

/* Whether the next read of /dev/rtc gives the time, rather than its end. */
static int unread = 1;

static void tell_time(uint64_t seconds)
{
    uint64_t microseconds = seconds * MILLION;
    struct message m = {.type = PM_SET_TIME, .w = {(uint32_t)microseconds, (uint32_t)(microseconds >> 32)}};
    server_post(SERVICE(PM), &m);
}

static int32_t read_rtc(const struct message *m)
{
    char text[32];
    uint64_t seconds;
    struct date d;
    unread = !unread;
    if (unread)
        return 0;
    int error = rtc_read(&seconds);
    if (error)
        return error;
    date_from_seconds(seconds, &d);
    uint32_t length = snprintf(text, sizeof text, "%04u-%02u-%02u %02u:%02u:%02u\n", (unsigned)d.year,
                               (unsigned)d.month, (unsigned)d.day, (unsigned)d.hour, (unsigned)d.minute,
                               (unsigned)d.second);
    if (length > m->w[3])
        length = m->w[3];
    error = sys_safecopy(m->source, m->w[2], 0, text, length, GRANT_WRITE);
    return error ? error : (int32_t)length;
}

/* Reads so many digits. Returns whether they are there. */
static int digits(const char **text, uint32_t count, uint32_t *value)
{
    for (*value = 0; count--; (*text)++) {
        if (**text < '0' || **text > '9')
            return 0;
        *value = *value * 10 + (uint32_t)(**text - '0');
    }
    return 1;
}

/* Reads a date as /dev/rtc gives it. */
static int parse_date(const char *text, struct date *d)
{
    return digits(&text, 4, &d->year) && *text++ == '-' && digits(&text, 2, &d->month) && *text++ == '-' &&
           digits(&text, 2, &d->day) && *text++ == ' ' && digits(&text, 2, &d->hour) && *text++ == ':' &&
           digits(&text, 2, &d->minute) && *text++ == ':' && digits(&text, 2, &d->second) &&
           (*text == 0 || *text == '\n');
}

static int32_t write_rtc(const char *text, uint32_t bytes)
{
    struct date d;
    uint64_t seconds;
    if (!parse_date(text, &d) || !date_to_seconds(&d, &seconds))
        return -EINVAL;
    int error = rtc_write(seconds);
    if (error)
        return error;
    tell_time(seconds);
    return (int32_t)bytes;
}

static int32_t write_device(const struct message *m)
{
    char text[WRITE_MAX + 1];
    uint32_t bytes = m->w[3] < WRITE_MAX ? m->w[3] : WRITE_MAX;
    if (m->w[1] == MINOR_CLOCK)
        return -EINVAL;
    int error = sys_safecopy(m->source, m->w[2], 0, text, bytes, GRANT_READ);
    if (error)
        return error;
    text[bytes] = 0;
    return m->w[1] == MINOR_RTC ? write_rtc(text, bytes) : speaker_write(text, bytes);
}

static int32_t control(const struct message *m)
{
    struct clock_setting setting;
    if (m->w[1] != MINOR_CLOCK)
        return -ENOTTY;
    if (m->w[2] == CLIOCGETHZ) {
        int error = sys_getclock(&setting.source, &setting.hz);
        return error ? error : ioctl_write(m, &setting, sizeof setting);
    }
    if (m->w[2] == CLIOCSETHZ) {
        int error = ioctl_read(m, &setting, sizeof setting);
        return error ? error : sys_setclock(setting.source, setting.hz);
    }
    return -ENOTTY;
}

static int32_t perform(const struct message *m)
{
    if (m->w[1] > MINOR_SPEAKER)
        return -ENODEV;
    switch (m->type) {
    case DEVICE_OPEN:
        unread = 1;
        return 0;
    case DEVICE_READ:
        return m->w[1] == MINOR_RTC ? read_rtc(m) : -EINVAL;
    case DEVICE_WRITE:
        return write_device(m);
    case DEVICE_IOCTL:
        return control(m);
    case DEVICE_SELECT:
        return m->w[2] & 3; /* nothing has to be waited for */
    default:
        return 0;
    }
}

static int request(struct message *m)
{
    character_reply(m->source, m->w[0], perform(m));
    return NO_REPLY;
}

/* All requests are answered at once: none is left to be cancelled. */
static int cancel(struct message *m)
{
    (void)m;
    return NO_REPLY;
}

static uint32_t idle(void)
{
    uint32_t retry = character_retry(), note = speaker_idle();
    return !retry || (note && note < retry) ? note : retry;
}

int main(int argc, char **argv)
{
    static const struct server_request requests[] = {
        {DEVICE_OPEN, request},   {DEVICE_CLOSE, request}, {DEVICE_READ, request},    {DEVICE_WRITE, request},
        {DEVICE_IOCTL, request},  {DEVICE_CANCEL, cancel}, {DEVICE_SELECT, request},  {0, NULL}};
    static const struct server server = {.requests = requests};
    uint64_t seconds;
    driver_start(argc, argv);
    speaker_start();
    if (rtc_read(&seconds) == 0)
        tell_time(seconds);
    else
        log_line("clock: the real-time clock has no valid time");
    driver_run(&server, idle);
    return 0;
}
