/* The screen. Each line of the text has one row; all rows move sideways together. Only rows that have changed
   are sent, as the terminal may be at the end of a slow line. */

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <tern/command.h>
#include <tern/keys.h>
#include "edit.h"

#define TAB 8
#define SIZE_MAX_OF_SCREEN 512

static struct terminal before;
static int is_terminal, rows = 24, columns = 80;
static size_t top, left;           /* the place of the first row's line; the first column */
static char *shown, *row_text;     /* what the terminal has; the row that is being made */

void screen_start(void)
{
    is_terminal = terminal_get(0, &before) == 0;
    if (is_terminal) {
        struct terminal state = before;
        state.flags = 0;
        terminal_set(0, &state);
        if (before.rows > 1 && before.rows <= SIZE_MAX_OF_SCREEN)
            rows = before.rows;
        if (before.columns > 9 && before.columns <= SIZE_MAX_OF_SCREEN)
            columns = before.columns;
    }
    shown = need(NULL, (size_t)rows * columns);
    row_text = need(NULL, columns);
    memset(shown, 0, (size_t)rows * columns);
    fputs("\033[H\033[2J", stdout);
}

void screen_end(void)
{
    printf("\033[%d;1H\033[K", rows);
    fflush(stdout);
    if (is_terminal)
        terminal_set(0, &before);
}

int screen_rows(void)
{
    return rows - 1;
}

static size_t column_after(size_t column, int c)
{
    return c == '\t' ? (column / TAB + 1) * TAB : column + (c < ' ' || c == 127 ? 2 : 1);
}

size_t column_of(size_t place)
{
    size_t column = 0;
    for (size_t i = line_start(place); i < place; i++)
        column = column_after(column, byte_at(i));
    return column;
}

size_t place_in_line(size_t start, size_t wanted)
{
    size_t column = 0, end = line_end(start);
    for (; start < end && (column = column_after(column, byte_at(start))) <= wanted; start++)
        ;
    return start;
}

/* Text before the first row's line may have changed, so that it begins elsewhere. */
void screen_changed_from(size_t place)
{
    if (place < top)
        top = line_start(place);
}

/* Chooses what is visible, and returns the cursor's row. */
static int look_at_cursor(size_t column)
{
    int row = 0;
    size_t place = top;
    if (column < left || column >= left + columns)
        left = column < (size_t)columns ? 0 : column - columns / 2;
    for (; cursor >= top && row < screen_rows(); row++) {
        size_t end = line_end(place);
        if (cursor <= end)
            return row;
        place = end + 1;
    }
    top = line_start(cursor);
    for (row = 0; row < screen_rows() / 2 && top > 0; row++)
        top = line_start(top - 1);
    return row;
}

static void put_cell(size_t column, char c)
{
    if (column >= left && column < left + columns)
        row_text[column - left] = c;
}

/* Makes a row of the line, and returns where the next one begins. */
static size_t make_row(size_t place)
{
    size_t column = 0, end = line_end(place);
    memset(row_text, ' ', columns);
    for (; place < end && column < left + columns; place++) {
        int c = byte_at(place);
        if (c >= 128)
            put_cell(column, '?');
        else if (isprint(c))
            put_cell(column, (char)c);
        else if (c != '\t') {
            put_cell(column, '^');
            put_cell(column + 1, (char)(c ^ '@'));
        }
        column = column_after(column, c);
    }
    return end + 1;
}

static void send_row(int row)
{
    char *old = shown + (size_t)row * columns;
    int used = columns;
    if (memcmp(old, row_text, columns) == 0)
        return;
    memcpy(old, row_text, columns);
    while (used > 0 && row_text[used - 1] == ' ')
        used--;
    printf("\033[%d;1H%.*s", row + 1, used, row_text);
    if (used < columns)
        fputs("\033[K", stdout);
}

static void send_state(const char *text)
{
    memset(shown + (size_t)(rows - 1) * columns, 0, columns);
    /* The last column stays free, or the screen could scroll. */
    printf("\033[%d;1H\033[7m%-*.*s\033[m", rows, columns - 1, columns - 1, text);
}

void screen_show(const char *name, const char *message)
{
    char state[SIZE_MAX_OF_SCREEN];
    size_t column = column_of(cursor), place, length = buffer_length();
    int row = look_at_cursor(column);
    place = top;
    for (int i = 0; i < screen_rows(); i++) {
        if (place <= length) {
            place = make_row(place);
        } else {
            memset(row_text, ' ', columns);
            row_text[0] = '~';
        }
        send_row(i);
    }
    snprintf(state, sizeof state, "%.40s%s  %lu:%zu  %s", name, modified ? " *" : "", cursor_line, column + 1,
             message);
    send_state(state);
    printf("\033[%d;%dH", row + 1, (int)(column - left) + 1);
    fflush(stdout);
}

int ask(const char *question, char *answer, size_t bytes)
{
    char state[SIZE_MAX_OF_SCREEN];
    size_t used = 0;
    for (;;) {
        answer[used] = 0;
        snprintf(state, sizeof state, "%s: %s_", question, answer);
        send_state(state);
        fflush(stdout);
        int key = read_key();
        if (key == '\r' || key == '\n')
            return used > 0;
        if (key < 0 || key == CONTROL('C') || key == CONTROL('G'))
            return 0;
        if ((key == '\b' || key == 127) && used > 0)
            used--;
        else if ((key == '\t' || (key >= ' ' && key < 256 && key != 127)) && used + 1 < bytes)
            answer[used++] = (char)key;
    }
}
