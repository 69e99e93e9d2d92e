/* The real-time clock (Motorola MC146818A data sheet, "Address Map" and "Registers"). */

#include <string.h>
#include <tern/errno.h>
#include "../common/driver.h"
#include "../common/ports.h"
#include "clock.h"

#define INDEX 0x70
#define DATA 0x71

#define SECONDS 0
#define MINUTES 2
#define HOURS 4
#define DAY 7
#define MONTH 8
#define YEAR 9
#define REGISTER_A 10
#define REGISTER_B 11
#define CENTURY 50 /* as PCs with ACPI have it (FADT, CENTURY) */

#define A_UPDATE 0x80   /* the time is just being counted on */
#define B_SET 0x80      /* stops that */
#define B_BINARY 0x04
#define B_24_HOURS 0x02
#define HOURS_PM 0x80

#define TRIES 10
#define UPDATE_MICROSECONDS 300 /* the update takes 248 to 1984 us ("Update cycle") */
#define UPDATE_POLLS 20

static uint8_t get(uint8_t index)
{
    out_byte(INDEX, index);
    return in_byte(DATA);
}

static void put(uint8_t index, uint8_t value)
{
    out_byte(INDEX, index);
    out_byte(DATA, value);
}

static void wait_for_update(void)
{
    for (int i = 0; i < UPDATE_POLLS && get(REGISTER_A) & A_UPDATE; i++)
        driver_pause(UPDATE_MICROSECONDS);
}

static const uint8_t registers[] = {SECONDS, MINUTES, HOURS, DAY, MONTH, YEAR, CENTURY};
#define REGISTERS (sizeof registers)

static void get_all(uint8_t *values)
{
    wait_for_update();
    for (uint32_t i = 0; i < REGISTERS; i++)
        values[i] = get(registers[i]);
}

static uint32_t decode(uint8_t value, uint8_t b)
{
    return b & B_BINARY ? value : (value >> 4) * 10 + (value & 15);
}

static uint8_t encode(uint32_t value, uint8_t b)
{
    return (uint8_t)(b & B_BINARY ? value : value / 10 << 4 | value % 10);
}

static uint32_t decode_hours(uint8_t value, uint8_t b)
{
    if (b & B_24_HOURS)
        return decode(value, b);
    return decode(value & (uint8_t)~HOURS_PM, b) % 12 + (value & HOURS_PM ? 12 : 0);
}

static uint8_t encode_hours(uint32_t hours, uint8_t b)
{
    if (b & B_24_HOURS)
        return encode(hours, b);
    return encode((hours + 11) % 12 + 1, b) | (hours >= 12 ? HOURS_PM : 0);
}

int rtc_read(uint64_t *seconds)
{
    uint8_t first[REGISTERS], second[REGISTERS], b = get(REGISTER_B);
    int try = 0;
    /* Two equal readings: no update came between. */
    do {
        get_all(first);
        get_all(second);
    } while (memcmp(first, second, REGISTERS) && ++try < TRIES);
    uint32_t century = decode(second[6], b), year = decode(second[5], b);
    struct date date = {.month = decode(second[4], b), .day = decode(second[3], b),
                        .hour = decode_hours(second[2], b), .minute = decode(second[1], b),
                        .second = decode(second[0], b)};
    if (century != 19 && century != 20)
        century = year < 70 ? 20 : 19;
    date.year = century * 100 + year;
    return date_to_seconds(&date, seconds) ? 0 : -EIO;
}

int rtc_write(uint64_t seconds)
{
    struct date d;
    uint8_t b = get(REGISTER_B);
    date_from_seconds(seconds, &d);
    put(REGISTER_B, b | B_SET);
    put(SECONDS, encode(d.second, b));
    put(MINUTES, encode(d.minute, b));
    put(HOURS, encode_hours(d.hour, b));
    put(DAY, encode(d.day, b));
    put(MONTH, encode(d.month, b));
    put(YEAR, encode(d.year % 100, b));
    put(CENTURY, encode(d.year / 100, b));
    put(REGISTER_B, b & (uint8_t)~B_SET);
    return 0;
}
