/* Dates and seconds since 1970, in the Gregorian calendar. */

#include "clock.h"

#define FIRST_YEAR 1970u
#define LAST_YEAR 2099u
#define DAY_SECONDS 86400u

static uint32_t is_leap(uint32_t year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static uint32_t days_of_year(uint32_t year)
{
    return 365 + is_leap(year);
}

static uint32_t days_of_month(uint32_t year, uint32_t month)
{
    static const uint8_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return days[month - 1] + (month == 2 && is_leap(year));
}

int date_to_seconds(const struct date *d, uint64_t *seconds)
{
    if (d->year < FIRST_YEAR || d->year > LAST_YEAR || d->month < 1 || d->month > 12 || d->day < 1 ||
        d->day > days_of_month(d->year, d->month) || d->hour > 23 || d->minute > 59 || d->second > 59)
        return 0;
    uint32_t days = d->day - 1;
    for (uint32_t year = FIRST_YEAR; year < d->year; year++)
        days += days_of_year(year);
    for (uint32_t month = 1; month < d->month; month++)
        days += days_of_month(d->year, month);
    *seconds = (uint64_t)days * DAY_SECONDS + d->hour * 3600 + d->minute * 60 + d->second;
    return 1;
}

void date_from_seconds(uint64_t seconds, struct date *d)
{
    uint32_t days = (uint32_t)(seconds / DAY_SECONDS), rest = (uint32_t)(seconds % DAY_SECONDS);
    d->hour = rest / 3600;
    d->minute = rest / 60 % 60;
    d->second = rest % 60;
    for (d->year = FIRST_YEAR; d->year < LAST_YEAR && days >= days_of_year(d->year); d->year++)
        days -= days_of_year(d->year);
    for (d->month = 1; d->month < 12 && days >= days_of_month(d->year, d->month); d->month++)
        days -= days_of_month(d->year, d->month);
    d->day = days + 1;
}
