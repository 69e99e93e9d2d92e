/* The parts of the console: keyboard and screen. */

#ifndef CONSOLE_H
#define CONSOLE_H

#include <stdint.h>

#define SCREEN_ROWS 25
#define SCREEN_COLUMNS 80

/* Takes the screen as it is, with its text and cursor. `memory` is that of the text screen. */
void screen_start(volatile uint16_t *memory);

/* Executes a byte of output: a character, or a part of a control sequence (ECMA-48). */
void screen_write(uint8_t byte);

/* Brings what has changed to the display. */
void screen_show(void);

/* Bytes that the screen answers (a position of the cursor), or NULL. */
const char *screen_answer(void);

/* Resets the controller and the keyboard. */
void keyboard_start(void);

/* Handles an interrupt; gives each key's bytes to `key`. */
void keyboard_interrupt(void (*key)(const char *bytes, uint32_t count));

#endif
