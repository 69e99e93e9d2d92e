/* Dates: days of the Gregorian calendar, reckoned in years that begin with March. */

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *const days[] = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday",
                                   "Saturday" };
static const char *const months[] = { "January", "February", "March", "April", "May", "June", "July",
                                      "August", "September", "October", "November", "December" };

static int64_t floor_divide(int64_t n, int divisor)
{
    return n >= 0 ? n / divisor : -((-n + divisor - 1) / divisor);
}

/* Days since 1970-01-01. Months count from 0 and may lie outside of a year. */
static int64_t days_since_1970(int64_t year, int month, int day)
{
    int64_t era;
    int in_era, months_since_march;

    year += floor_divide(month, 12);
    month -= floor_divide(month, 12) * 12;
    months_since_march = (month + 10) % 12;
    year -= month < 2;
    era = floor_divide(year, 400);
    in_era = year - era * 400;
    return era * 146097 + in_era * 365 + in_era / 4 - in_era / 100 + (months_since_march * 153 + 2) / 5 + day
           - 1 - 719468;
}

struct tm *gmtime_r(const time_t *seconds, struct tm *to)
{
    int64_t day = floor_divide(*seconds, 86400), era, year;
    int rest = *seconds - day * 86400, in_era, of_year;

    to->tm_hour = rest / 3600;
    to->tm_min = rest / 60 % 60;
    to->tm_sec = rest % 60;
    to->tm_wday = (day + 4) % 7 < 0 ? (day + 4) % 7 + 7 : (day + 4) % 7;
    era = floor_divide(day + 719468, 146097);
    in_era = day + 719468 - era * 146097;
    /* Leap days: every 1461 days, but for every 36524, but for every 146097. */
    year = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
    of_year = in_era - (year * 365 + year / 4 - year / 100);
    to->tm_mon = (5 * of_year + 2) / 153;
    to->tm_mday = of_year - (153 * to->tm_mon + 2) / 5 + 1;
    to->tm_mon = (to->tm_mon + 2) % 12;
    year += era * 400 + (to->tm_mon < 2);
    to->tm_year = year - 1900;
    to->tm_yday = day - days_since_1970(year, 0, 1);
    to->tm_isdst = 0;
    return to;
}

struct tm *gmtime(const time_t *seconds)
{
    static struct tm date;

    return gmtime_r(seconds, &date);
}

struct tm *localtime_r(const time_t *seconds, struct tm *to)
{
    return gmtime_r(seconds, to);
}

struct tm *localtime(const time_t *seconds)
{
    return gmtime(seconds);
}

time_t timegm(struct tm *date)
{
    time_t seconds = days_since_1970(date->tm_year + 1900LL, date->tm_mon, date->tm_mday) * 86400 +
                     date->tm_hour * 3600LL + date->tm_min * 60LL + date->tm_sec;

    gmtime_r(&seconds, date);
    return seconds;
}

time_t mktime(struct tm *date)
{
    return timegm(date);
}

double difftime(time_t later, time_t earlier)
{
    return later - earlier;
}

/* The week of the year whose first day is the first `start` (0 Sunday, 1 Monday). */
static int week(const struct tm *date, int start)
{
    return (date->tm_yday + 7 - (date->tm_wday + 7 - start) % 7) / 7;
}

static const char *composed(char kind)
{
    switch (kind) {
    case 'c':
        return "%a %b %e %H:%M:%S %Y";
    case 'D':
    case 'x':
        return "%m/%d/%y";
    case 'F':
        return "%Y-%m-%d";
    case 'r':
        return "%I:%M:%S %p";
    case 'R':
        return "%H:%M";
    case 'T':
    case 'X':
        return "%H:%M:%S";
    }
    return NULL;
}

static void convert(char *text, size_t bytes, char kind, const struct tm *date)
{
    struct tm copy = *date;
    int year = date->tm_year + 1900, hour = date->tm_hour % 12 ? date->tm_hour % 12 : 12;

    switch (kind) {
    case 'a':
        snprintf(text, bytes, "%.3s", days[date->tm_wday % 7u]);
        break;
    case 'A':
        snprintf(text, bytes, "%s", days[date->tm_wday % 7u]);
        break;
    case 'b':
    case 'h':
        snprintf(text, bytes, "%.3s", months[date->tm_mon % 12u]);
        break;
    case 'B':
        snprintf(text, bytes, "%s", months[date->tm_mon % 12u]);
        break;
    case 'C':
        snprintf(text, bytes, "%02d", year / 100);
        break;
    case 'd':
        snprintf(text, bytes, "%02d", date->tm_mday);
        break;
    case 'e':
        snprintf(text, bytes, "%2d", date->tm_mday);
        break;
    case 'H':
        snprintf(text, bytes, "%02d", date->tm_hour);
        break;
    case 'I':
        snprintf(text, bytes, "%02d", hour);
        break;
    case 'j':
        snprintf(text, bytes, "%03d", date->tm_yday + 1);
        break;
    case 'm':
        snprintf(text, bytes, "%02d", date->tm_mon + 1);
        break;
    case 'M':
        snprintf(text, bytes, "%02d", date->tm_min);
        break;
    case 'n':
        snprintf(text, bytes, "\n");
        break;
    case 'p':
        snprintf(text, bytes, "%s", date->tm_hour < 12 ? "AM" : "PM");
        break;
    case 's':
        snprintf(text, bytes, "%lld", (long long)timegm(&copy));
        break;
    case 'S':
        snprintf(text, bytes, "%02d", date->tm_sec);
        break;
    case 't':
        snprintf(text, bytes, "\t");
        break;
    case 'u':
        snprintf(text, bytes, "%d", date->tm_wday ? date->tm_wday : 7);
        break;
    case 'U':
        snprintf(text, bytes, "%02d", week(date, 0));
        break;
    case 'w':
        snprintf(text, bytes, "%d", date->tm_wday);
        break;
    case 'W':
        snprintf(text, bytes, "%02d", week(date, 1));
        break;
    case 'y':
        snprintf(text, bytes, "%02d", year % 100);
        break;
    case 'Y':
        snprintf(text, bytes, "%d", year);
        break;
    case 'z':
        snprintf(text, bytes, "+0000");
        break;
    case 'Z':
        snprintf(text, bytes, "UTC");
        break;
    default:
        snprintf(text, bytes, "%c", kind);
    }
}

size_t strftime(char *to, size_t bytes, const char *format, const struct tm *date)
{
    size_t used = 0;
    char text[40];

    for (; *format; format++) {
        size_t length = 1;

        if (*format == '%' && format[1]) {
            const char *parts = composed(*++format);

            if (parts)
                strftime(text, sizeof text, parts, date);
            else
                convert(text, sizeof text, *format, date);
            length = strlen(text);
        } else {
            text[0] = *format;
        }
        if (used + length >= bytes)
            return 0;
        memcpy(to + used, text, length);
        used += length;
    }
    if (!bytes)
        return 0;
    to[used] = 0;
    return used;
}

char *asctime(const struct tm *date)
{
    static char text[40];

    strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y\n", date);
    return text;
}

char *ctime(const time_t *seconds)
{
    return asctime(gmtime(seconds));
}
