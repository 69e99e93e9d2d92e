/* The keyboard: scan codes of set 1, as the 8042 translates them (IBM PS/2 Hardware Interface Technical
   Reference, "Keyboard and Auxiliary Device Controller"; the layout is the American one). */

#include <string.h>
#include "../common/driver.h"
#include "../common/ports.h"
#include "console.h"

#define DATA 0x60
#define STATUS 0x64
#define COMMAND 0x64

#define STATUS_OUTPUT 0x01 /* a byte can be read */
#define STATUS_INPUT 0x02  /* the controller has not taken the last byte yet */
#define STATUS_MOUSE 0x20  /* the byte comes from the second port */
#define READ_CONFIGURATION 0x20
#define WRITE_CONFIGURATION 0x60
#define ENABLE_KEYBOARD 0xae
#define CONFIGURATION_INTERRUPT 0x01
#define CONFIGURATION_DISABLED 0x10
#define CONFIGURATION_TRANSLATE 0x40

/* To and from the keyboard itself. */
#define SET_LIGHTS 0xed
#define ENABLE_SCANNING 0xf4
#define ACKNOWLEDGE 0xfa

#define RELEASED 0x80
#define EXTENDED 0xe0
#define PAUSE_KEY 0xe1

#define KEY_CONTROL 0x1d
#define KEY_LEFT_SHIFT 0x2a
#define KEY_RIGHT_SHIFT 0x36
#define KEY_ALT 0x38
#define KEY_CAPS_LOCK 0x3a
#define KEY_F1 0x3b
#define KEY_F10 0x44
#define KEY_NUM_LOCK 0x45
#define KEY_SCROLL_LOCK 0x46
#define KEYPAD_FIRST 0x47
#define KEYPAD_LAST 0x53
#define KEY_F11 0x57
#define KEY_F12 0x58

/* Bytes of one interrupt, and polls of the controller, at most. */
#define BYTES_MAX 32
#define POLLS_MAX 100
#define POLL_MICROSECONDS 100

static const char plain[] =
    "\0\0331234567890-=\177\tqwertyuiop[]\r\0asdfghjkl;'`\0\\zxcvbnm,./\0*\0 ";
static const char shifted[] =
    "\0\033!@#$%^&*()_+\177\tQWERTYUIOP{}\r\0ASDFGHJKL:\"~\0|ZXCVBNM<>?\0*\0 ";

/* The keypad from Home on, with Num Lock. */
static const char digits[] = "789-456+1230.";

/* What keys without characters send: CSI and these. */
static const char *const arrows[] = {"H", "A", "5~", NULL, "D", "E", "C", NULL, "F", "B", "6~", "2~", "3~"};
static const char *const functions[] = {"OP", "OQ", "OR", "OS", "[15~", "[17~", "[18~", "[19~", "[20~",
                                        "[21~", "[23~", "[24~"};

static int shift, control, alt, caps, numbers, extended;
static uint32_t to_skip;           /* bytes of the Pause key */
static uint8_t lights[2];          /* command and value that are to be sent */
static uint32_t lights_left;

static int wait_for(uint8_t mask, uint8_t value)
{
    for (uint32_t i = 0; i < POLLS_MAX; i++) {
        if ((in_byte(STATUS) & mask) == value)
            return 1;
        driver_pause(POLL_MICROSECONDS);
    }
    return 0;
}

static void command(uint16_t port, uint8_t value)
{
    if (wait_for(STATUS_INPUT, 0))
        out_byte(port, value);
}

static void drain(void)
{
    for (uint32_t i = 0; i < BYTES_MAX && in_byte(STATUS) & STATUS_OUTPUT; i++)
        in_byte(DATA);
}

void keyboard_start(void)
{
    drain();
    command(COMMAND, READ_CONFIGURATION);
    uint8_t configuration = CONFIGURATION_INTERRUPT | CONFIGURATION_TRANSLATE;
    if (wait_for(STATUS_OUTPUT, STATUS_OUTPUT))
        configuration |= in_byte(DATA) & (uint8_t)~CONFIGURATION_DISABLED;
    command(COMMAND, WRITE_CONFIGURATION);
    command(DATA, configuration);
    command(COMMAND, ENABLE_KEYBOARD);
    command(DATA, ENABLE_SCANNING);
    if (wait_for(STATUS_OUTPUT, STATUS_OUTPUT))
        drain();
}

/* The keyboard acknowledges each byte of the command before it takes the next one. */
static void send_lights(void)
{
    if (lights_left && !(in_byte(STATUS) & STATUS_INPUT))
        out_byte(DATA, lights[2 - lights_left--]);
}

static void show_lights(void)
{
    lights[0] = SET_LIGHTS;
    lights[1] = (uint8_t)(numbers << 1 | caps << 2);
    lights_left = 2;
    send_lights();
}

/* Keys that are held or that switch something. Returns whether it was one. */
static int modifier(uint8_t code, int pressed)
{
    switch (code) {
    case KEY_LEFT_SHIFT:
    case KEY_RIGHT_SHIFT:
        /* With E0 it is only said so that old programs see arrows without shift. */
        if (!extended)
            shift = pressed;
        return 1;
    case KEY_CONTROL:
        control = pressed;
        return 1;
    case KEY_ALT:
        alt = pressed;
        return 1;
    case KEY_CAPS_LOCK:
        caps ^= pressed;
        break;
    case KEY_NUM_LOCK:
        numbers ^= pressed;
        break;
    case KEY_SCROLL_LOCK:
        return 1;
    default:
        return 0;
    }
    if (pressed)
        show_lights();
    return 1;
}

static uint32_t sequence(char *bytes, const char *introducer, const char *rest)
{
    strcpy(bytes, introducer);
    strcat(bytes, rest);
    return strlen(bytes);
}

static uint32_t keypad(uint8_t code, char *bytes)
{
    uint32_t i = code - KEYPAD_FIRST;
    if (!extended && (numbers != shift || !arrows[i])) {
        bytes[0] = digits[i];
        return 1;
    }
    return arrows[i] ? sequence(bytes, "\033[", arrows[i]) : 0;
}

static uint32_t character(uint8_t code, char *bytes)
{
    if (code >= sizeof plain - 1)
        return 0;
    char lower = plain[code], c = shift ? shifted[code] : lower;
    uint32_t n = 0;
    if (extended && lower == '/')
        c = '/';
    if (lower >= 'a' && lower <= 'z' && caps)
        c ^= 0x20;
    if (c == 0 && code != 0)
        return 0;
    if (control && (c == ' ' || c == '?' || (c >= '@' && c < 127)))
        c = c == '?' ? 127 : c == ' ' ? 0 : (char)(c & 0x1f);
    if (alt)
        bytes[n++] = '\033';
    bytes[n++] = c;
    return n;
}

static uint32_t pressed_key(uint8_t code, char *bytes)
{
    if (code >= KEYPAD_FIRST && code <= KEYPAD_LAST)
        return keypad(code, bytes);
    if (code >= KEY_F1 && code <= KEY_F10)
        return sequence(bytes, "\033", functions[code - KEY_F1]);
    if (code == KEY_F11 || code == KEY_F12)
        return sequence(bytes, "\033", functions[code - KEY_F11 + 10]);
    if (extended && code != 0x1c && code != 0x35)
        return 0;
    return character(code, bytes);
}

static uint32_t scan_code(uint8_t byte, char *bytes)
{
    uint32_t count = 0;
    if (byte == ACKNOWLEDGE) {
        send_lights();
        return 0;
    }
    if (to_skip) {
        to_skip--;
        return 0;
    }
    if (byte == PAUSE_KEY) {
        to_skip = 2;
        return 0;
    }
    if (byte == EXTENDED) {
        extended = 1;
        return 0;
    }
    uint8_t code = byte & (uint8_t)~RELEASED;
    int pressed = !(byte & RELEASED);
    if (!modifier(code, pressed) && pressed)
        count = pressed_key(code, bytes);
    extended = 0;
    return count;
}

void keyboard_interrupt(void (*key)(const char *bytes, uint32_t count))
{
    for (uint32_t i = 0; i < BYTES_MAX; i++) {
        char bytes[8];
        uint8_t status = in_byte(STATUS);
        if (!(status & STATUS_OUTPUT))
            return;
        uint8_t byte = in_byte(DATA);
        if (status & STATUS_MOUSE)
            continue;
        uint32_t count = scan_code(byte, bytes);
        if (count)
            key(bytes, count);
    }
}
