/* The kernel's log: a ring of text, which GETINFO returns. With the word `debug` on the command line, and at
   a panic, it also goes to the first serial port and to the debug console of emulators (port E9h or 402h). */

#include <stdarg.h>

#include "kernel.h"

#define SIZE 16384
#define COM1 0x3f8
#define LINE_STATUS 5              /* 16550 data sheet: bit 5, the transmitter has room */
#define DEBUG_CONSOLE 0x402
#define PATIENCE 100000

static char ring[SIZE];
static uint32_t written;
static int is_loud;

void log_start(void)
{
    is_loud = has_word("debug");
}

static void serial(char c)
{
    for (int i = 0; i < PATIENCE && !(in8(COM1 + LINE_STATUS) & 0x20); i++)
        ;
    out8(COM1, (uint8_t)c);
}

static void put(char c)
{
    ring[written++ % SIZE] = c;
    if (!is_loud)
        return;
    if (c == '\n')
        serial('\r');
    serial(c);
    out8(DEBUG_CONSOLE, (uint8_t)c);
}

static void put_number(uint32_t number, uint32_t base)
{
    char digits[11];
    int count = 0;

    do {
        digits[count++] = "0123456789abcdef"[number % base];
        number /= base;
    } while (number != 0);
    while (count > 0)
        put(digits[--count]);
}

static void put_all(const char *format, va_list arguments)
{
    for (; *format != 0; format++) {
        if (*format != '%') {
            put(*format);
            continue;
        }
        switch (*++format) {
        case 's':
            for (const char *text = va_arg(arguments, const char *); *text != 0; text++)
                put(*text);
            break;
        case 'u':
            put_number(va_arg(arguments, uint32_t), 10);
            break;
        case 'x':
            put_number(va_arg(arguments, uint32_t), 16);
            break;
        }
    }
}

void log_text(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    put_all(format, arguments);
    va_end(arguments);
}

uint32_t log_copy(char *to, uint32_t bytes)
{
    uint32_t there = written < SIZE ? written : SIZE, count = bytes < there ? bytes : there;

    for (uint32_t i = 0; i < count; i++)
        to[i] = ring[(written - count + i) % SIZE];
    return count;
}

void panic(const char *format, ...)
{
    va_list arguments;

    is_loud = 1;
    put_all("\nkernel: ", NULL);
    va_start(arguments, format);
    put_all(format, arguments);
    va_end(arguments);
    for (;;)
        __asm__ volatile("cli\n\thlt");
}
