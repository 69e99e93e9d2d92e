/* The screen: ECMA-48's control functions, as far as terminals of the VT100's kind have them, on a VGA's text
   screen. All is done in memory of the process's own; the display gets the rows that have changed. */

#include <stdio.h>
#include <string.h>
#include "../common/ports.h"
#include "console.h"

/* The CRT controller's registers (IBM VGA, "CRT Controller Registers"). */
#define CRTC_INDEX 0x3d4
#define CRTC_DATA 0x3d5
#define CURSOR_START 0x0a
#define START_HIGH 0x0c
#define START_LOW 0x0d
#define CURSOR_HIGH 0x0e
#define CURSOR_LOW 0x0f
#define CURSOR_OFF 0x20 /* in CURSOR_START */

#define ROWS SCREEN_ROWS
#define COLUMNS SCREEN_COLUMNS
#define PARAMETERS 8
#define PARAMETER_MAX 9999
#define NORMAL 0x07
#define BOLD 0x08

enum state { TEXT, ESCAPE, CONTROL, STRING, STRING_ESCAPE, CHARACTER_SET };

struct position {
    int row, column;
    uint8_t attribute;
    int reverse;
};

static volatile uint16_t *display;
static uint16_t cells[ROWS][COLUMNS];
static uint32_t changed;           /* a bit for each row */
static struct position now, saved;
static int top, bottom = ROWS - 1; /* the region that scrolls */
static int wrap;                   /* the next character goes to the next row first */
static int automatic_wrap = 1, cursor_visible = 1;
static enum state state;
static int parameters[PARAMETERS], parameters_used;
static char private_mark;
static char answer[24];
static uint16_t shown_cursor = 0xffff;
static int shown_visible = 1;

static uint8_t crtc_read(uint8_t index)
{
    out_byte(CRTC_INDEX, index);
    return in_byte(CRTC_DATA);
}

static void crtc_write(uint8_t index, uint8_t value)
{
    out_byte(CRTC_INDEX, index);
    out_byte(CRTC_DATA, value);
}

void screen_start(volatile uint16_t *memory)
{
    display = memory;
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            cells[row][column] = display[row * COLUMNS + column];
    crtc_write(START_HIGH, 0);
    crtc_write(START_LOW, 0);
    crtc_write(CURSOR_START, crtc_read(CURSOR_START) & (uint8_t)~CURSOR_OFF);
    int cursor = crtc_read(CURSOR_HIGH) << 8 | crtc_read(CURSOR_LOW);
    now.attribute = NORMAL;
    if (cursor < ROWS * COLUMNS) {
        now.row = cursor / COLUMNS;
        now.column = cursor % COLUMNS;
    }
    saved = now;
}

static uint8_t colours(void)
{
    uint8_t a = now.attribute;
    return now.reverse ? (uint8_t)((a & 0x88) | (a & 7) << 4 | (a >> 4 & 7)) : a;
}

static void blank(int row, int first, int last)
{
    for (int column = first; column <= last; column++)
        cells[row][column] = (uint16_t)(colours() << 8 | ' ');
    changed |= 1u << row;
}

/* Moves the rows from `first` to `last` up (down if negative); blank ones come in. */
static void scroll(int first, int last, int rows)
{
    int height = last - first + 1, count = rows < 0 ? -rows : rows;
    if (count > height)
        count = height;
    if (rows > 0)
        memmove(cells[first], cells[first + count], (height - count) * sizeof *cells);
    else
        memmove(cells[first + count], cells[first], (height - count) * sizeof *cells);
    for (int i = 0; i < count; i++)
        blank(rows > 0 ? last - i : first + i, 0, COLUMNS - 1);
    for (int row = first; row <= last; row++)
        changed |= 1u << row;
}

static void line_feed(void)
{
    if (now.row == bottom)
        scroll(top, bottom, 1);
    else if (now.row < ROWS - 1)
        now.row++;
}

static void reverse_line_feed(void)
{
    if (now.row == top)
        scroll(top, bottom, -1);
    else if (now.row > 0)
        now.row--;
}

static int within(int value, int least, int most)
{
    return value < least ? least : value > most ? most : value;
}

static void move_to(int row, int column)
{
    now.row = within(row, 0, ROWS - 1);
    now.column = within(column, 0, COLUMNS - 1);
    wrap = 0;
}

static void put(uint8_t byte)
{
    if (wrap) {
        now.column = 0;
        line_feed();
        wrap = 0;
    }
    cells[now.row][now.column] = (uint16_t)(colours() << 8 | byte);
    changed |= 1u << now.row;
    if (now.column < COLUMNS - 1)
        now.column++;
    else
        wrap = automatic_wrap;
}

/* Parameter i; 0 and absent ones mean `otherwise`. */
static int parameter(int i, int otherwise)
{
    return i < parameters_used && parameters[i] ? parameters[i] : otherwise;
}

static void erase_in_display(int what)
{
    if (what == 0)
        blank(now.row, now.column, COLUMNS - 1);
    else if (what == 1)
        blank(now.row, 0, now.column);
    for (int row = 0; row < ROWS; row++)
        if (what == 2 || what == 3 || (what == 0 && row > now.row) || (what == 1 && row < now.row))
            blank(row, 0, COLUMNS - 1);
}

static void erase_in_line(int what)
{
    blank(now.row, what == 0 ? now.column : 0, what == 1 ? now.column : COLUMNS - 1);
}

static void insert_or_delete_characters(int count)
{
    uint16_t *cell = &cells[now.row][now.column];
    int width = COLUMNS - now.column, n = within(count < 0 ? -count : count, 0, width);
    if (count > 0)
        memmove(cell + n, cell, (width - n) * sizeof *cell);
    else
        memmove(cell, cell + n, (width - n) * sizeof *cell);
    if (n && count > 0)
        blank(now.row, now.column, now.column + n - 1);
    else if (n)
        blank(now.row, COLUMNS - n, COLUMNS - 1);
}

static void insert_or_delete_lines(int count)
{
    if (now.row >= top && now.row <= bottom)
        scroll(now.row, bottom, -count);
}

/* ECMA-48 counts colours with red as bit 0, the VGA with blue. */
static uint8_t vga_colour(int colour)
{
    return (uint8_t)((colour & 1) << 2 | (colour & 2) | (colour & 4) >> 2);
}

static void select_rendition(int what)
{
    uint8_t *a = &now.attribute;
    if (what == 0) {
        *a = NORMAL;
        now.reverse = 0;
    } else if (what == 1) {
        *a |= BOLD;
    } else if (what == 2 || what == 22) {
        *a &= (uint8_t)~BOLD;
    } else if (what == 5) {
        *a |= 0x80;
    } else if (what == 25) {
        *a &= 0x7f;
    } else if (what == 7 || what == 27) {
        now.reverse = what == 7;
    } else if (what >= 30 && what <= 37) {
        *a = (uint8_t)((*a & 0xf8) | vga_colour(what - 30));
    } else if (what >= 90 && what <= 97) {
        *a = (uint8_t)((*a & 0xf8) | BOLD | vga_colour(what - 90));
    } else if (what == 39) {
        *a = (uint8_t)((*a & 0xf8) | (NORMAL & 7));
    } else if (what >= 40 && what <= 47) {
        *a = (uint8_t)((*a & 0x8f) | vga_colour(what - 40) << 4);
    } else if (what == 49) {
        *a = (uint8_t)((*a & 0x8f) | (NORMAL & 0x70));
    }
}

static void select_renditions(void)
{
    if (parameters_used == 0)
        select_rendition(0);
    for (int i = 0; i < parameters_used; i++)
        select_rendition(parameters[i]);
}

static void set_region(void)
{
    int first = parameter(0, 1) - 1, last = parameter(1, ROWS) - 1;
    if (last >= ROWS)
        last = ROWS - 1;
    if (first >= last)
        return;
    top = first;
    bottom = last;
    move_to(0, 0);
}

static void set_mode(int on)
{
    if (private_mark == '?' && parameter(0, 0) == 25)
        cursor_visible = on;
    else if (private_mark == '?' && parameter(0, 0) == 7)
        automatic_wrap = on;
}

static void report(int what)
{
    if (what == 6)
        snprintf(answer, sizeof answer, "\033[%d;%dR", now.row + 1, now.column + 1);
    else if (what == 5)
        strcpy(answer, "\033[0n");
}

/* Functions that move the cursor. Returns whether it was one. */
static int control_cursor(uint8_t final)
{
    int n = parameter(0, 1);
    switch (final) {
    case 'A':
        move_to(now.row - n, now.column);
        return 1;
    case 'B':
        move_to(now.row + n, now.column);
        return 1;
    case 'C':
        move_to(now.row, now.column + n);
        return 1;
    case 'D':
        move_to(now.row, now.column - n);
        return 1;
    case 'E':
        move_to(now.row + n, 0);
        return 1;
    case 'F':
        move_to(now.row - n, 0);
        return 1;
    case 'G':
        move_to(now.row, n - 1);
        return 1;
    case 'd':
        move_to(n - 1, now.column);
        return 1;
    case 'H':
    case 'f':
        move_to(n - 1, parameter(1, 1) - 1);
        return 1;
    case 's':
        saved = now;
        return 1;
    case 'u':
        now = saved;
        wrap = 0;
        return 1;
    default:
        return 0;
    }
}

static void control(uint8_t final)
{
    int n = parameter(0, 1);
    if (control_cursor(final))
        return;
    switch (final) {
    case 'J':
        erase_in_display(parameter(0, 0));
        break;
    case 'K':
        erase_in_line(parameter(0, 0));
        break;
    case 'L':
        insert_or_delete_lines(n);
        break;
    case 'M':
        insert_or_delete_lines(-n);
        break;
    case '@':
        insert_or_delete_characters(n);
        break;
    case 'P':
        insert_or_delete_characters(-n);
        break;
    case 'X':
        blank(now.row, now.column, within(now.column + n - 1, now.column, COLUMNS - 1));
        break;
    case 'S':
        scroll(top, bottom, n);
        break;
    case 'T':
        scroll(top, bottom, -n);
        break;
    case 'm':
        select_renditions();
        break;
    case 'r':
        set_region();
        break;
    case 'h':
    case 'l':
        set_mode(final == 'h');
        break;
    case 'n':
        report(parameter(0, 0));
        break;
    case 'c':
        strcpy(answer, "\033[?6c"); /* "I am a VT102" */
        break;
    }
}

static void reset(void)
{
    now = (struct position){.attribute = NORMAL};
    saved = now;
    top = 0;
    bottom = ROWS - 1;
    automatic_wrap = cursor_visible = 1;
    wrap = 0;
    erase_in_display(2);
}

static void escape(uint8_t byte)
{
    state = TEXT;
    switch (byte) {
    case '[':
        state = CONTROL;
        parameters_used = 0;
        private_mark = 0;
        break;
    case ']':
    case 'P':
    case '^':
    case '_':
        state = STRING;
        break;
    case '(':
    case ')':
        state = CHARACTER_SET;
        break;
    case '7':
        saved = now;
        break;
    case '8':
        now = saved;
        wrap = 0;
        break;
    case 'D':
        line_feed();
        break;
    case 'E':
        now.column = 0;
        line_feed();
        break;
    case 'M':
        reverse_line_feed();
        break;
    case 'c':
        reset();
        break;
    }
}

static void control_byte(uint8_t byte)
{
    if (byte >= '0' && byte <= '9') {
        if (parameters_used == 0)
            parameters[parameters_used++] = 0;
        int *last = &parameters[parameters_used - 1];
        *last = within(*last * 10 + byte - '0', 0, PARAMETER_MAX);
    } else if (byte == ';') {
        if (parameters_used == 0)
            parameters[parameters_used++] = 0;
        if (parameters_used < PARAMETERS)
            parameters[parameters_used++] = 0;
    } else if (byte >= '<' && byte <= '?') {
        private_mark = (char)byte;
    } else if (byte >= '@') {
        state = TEXT;
        control(byte);
    }
}

/* Control characters act within sequences too. Returns whether it was one. */
static int control_character(uint8_t byte)
{
    switch (byte) {
    case 0x1b:
        state = ESCAPE;
        return 1;
    case 0x18: /* CAN and SUB end a sequence */
    case 0x1a:
        state = TEXT;
        return 1;
    case '\b':
        move_to(now.row, now.column - 1);
        return 1;
    case '\t':
        move_to(now.row, (now.column | 7) + 1);
        return 1;
    case '\n':
    case '\v':
    case '\f':
        line_feed();
        wrap = 0;
        return 1;
    case '\r':
        move_to(now.row, 0);
        return 1;
    default:
        return byte < ' ' || byte == 0x7f;
    }
}

/* The text of strings (titles of windows and so on) is passed over, up to BEL or ESC \. */
static void string(uint8_t byte)
{
    if (byte == 7 || byte == 0x18 || byte == 0x1a || (state == STRING_ESCAPE && byte == '\\'))
        state = TEXT;
    else
        state = byte == 0x1b ? STRING_ESCAPE : STRING;
}

void screen_write(uint8_t byte)
{
    if (state == STRING || state == STRING_ESCAPE)
        string(byte);
    else if (control_character(byte))
        return;
    else if (state == TEXT)
        put(byte);
    else if (state == ESCAPE)
        escape(byte);
    else if (state == CONTROL)
        control_byte(byte);
    else
        state = TEXT;
}

const char *screen_answer(void)
{
    static char given[sizeof answer];
    if (!answer[0])
        return NULL;
    strcpy(given, answer);
    answer[0] = 0;
    return given;
}

static void show_cursor(void)
{
    uint16_t cursor = (uint16_t)(now.row * COLUMNS + now.column);
    if (cursor != shown_cursor) {
        struct port_access accesses[4] = {{IO_OUT, 1, CRTC_INDEX, CURSOR_HIGH},
                                          {IO_OUT, 1, CRTC_DATA, cursor >> 8},
                                          {IO_OUT, 1, CRTC_INDEX, CURSOR_LOW},
                                          {IO_OUT, 1, CRTC_DATA, cursor & 0xff}};
        port_vector(accesses, 4);
        shown_cursor = cursor;
    }
    if (cursor_visible != shown_visible) {
        uint8_t start = crtc_read(CURSOR_START);
        crtc_write(CURSOR_START, cursor_visible ? start & (uint8_t)~CURSOR_OFF : start | CURSOR_OFF);
        shown_visible = cursor_visible;
    }
}

void screen_show(void)
{
    for (int row = 0; changed; row++, changed >>= 1)
        if (changed & 1)
            for (int column = 0; column < COLUMNS; column++)
                display[row * COLUMNS + column] = cells[row][column];
    show_cursor();
}
