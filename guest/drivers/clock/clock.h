/* The parts of the clock's driver. */

#ifndef CLOCK_DRIVER_H
#define CLOCK_DRIVER_H

#include <stdint.h>

/* The real-time clock: seconds since 1970. Each returns 0 or an error. */
int rtc_read(uint64_t *seconds);
int rtc_write(uint64_t seconds);

/* Dates: years from 1970 to 2099. */
struct date {
    uint32_t year, month, day, hour, minute, second;
};

/* Returns whether there is such a date. */
int date_to_seconds(const struct date *date, uint64_t *seconds);
void date_from_seconds(uint64_t seconds, struct date *date);

/* The speaker: takes as many notes of the text as there is room for, and returns how many bytes those have,
   or an error. speaker_idle plays; it returns in how many microseconds the note ends, 0 if none is played. */
void speaker_start(void);
int speaker_write(const char *text, uint32_t bytes);
uint32_t speaker_idle(void);

#endif
