/* COM1: what is typed and what is shown. */

#include "exits.h"

#define COM1 0x3f8
#define LINE_STATUS (COM1 + 5)
#define DATA_READY 1
#define TRANSMITTER_EMPTY 0x20
#define SERIAL_OPEN 0xef
#define ALL_MASKED 0xff
#define MASKS 0x21

void prepare_serial(void) {
    out8(COM1 + 3, 3);
    out8(COM1 + 2, 7);
    /* Received data, by OUT2. */
    out8(COM1 + 4, 0xb);
    out8(COM1 + 1, 1);
}

char get(void) {
    while (!(in8(LINE_STATUS) & DATA_READY)) {
        out8(MASKS, SERIAL_OPEN);
        /* What came just before makes an interrupt as soon as it can. */
        __asm__ volatile("sti; hlt; cli");
        out8(MASKS, ALL_MASKED);
    }
    return (char)in8(COM1);
}

void put(const char *text) {
    for (; *text; text++) {
        while (!(in8(LINE_STATUS) & TRANSMITTER_EMPTY)) {
        }
        out8(COM1, (uint8_t)*text);
    }
}

void put_number(uint32_t number) {
    char digits[11], *digit = digits + sizeof digits - 1;
    *digit = 0;
    do {
        *--digit = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    put(digit);
}

void put_hex(uint32_t number) {
    char digits[9] = {0};
    for (int i = 7; i >= 0; i--, number >>= 4)
        digits[i] = "0123456789abcdef"[number & 15];
    put(digits);
}
