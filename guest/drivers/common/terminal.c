/* The line discipline of terminals (POSIX, chapter 11, "General Terminal Interface"). */

#include <stdio.h>
#include <string.h>
#include <tern/lib.h>
#include <tern/pm.h>
#include "terminal.h"

/* Marks of input: the line ends with this byte; there is no byte, just the end. */
#define LINE_END 0x100
#define NO_BYTE 0x200

#define BELL 7
#define BACKSPACE 8
#define ERASE_WORD 23 /* Ctrl-W */
#define DELETE 127

/* Writers leave so much room for echo. */
#define ECHO_ROOM 512

static void put(struct line *line, uint8_t byte)
{
    if (line->output_used == TERMINAL_OUTPUT_MAX)
        return;
    line->output[(line->output_first + line->output_used++) % TERMINAL_OUTPUT_MAX] = byte;
}

/* Puts a byte out and keeps account of the column, which erasing of tabs needs. */
static void put_processed(struct line *line, uint8_t byte)
{
    if (byte == '\n') {
        if (line->settings.flags & TERMINAL_OUTPUT) {
            put(line, '\r');
            line->column = 0;
        }
    } else if (byte == '\r') {
        line->column = 0;
    } else if (byte == BACKSPACE) {
        line->column -= line->column > 0;
    } else if (byte == '\t') {
        line->column = (line->column | 7) + 1;
    } else if (byte >= ' ' && byte != DELETE) {
        line->column++;
    }
    put(line, byte);
}

int terminal_next(struct line *line)
{
    if (line->output_used == 0)
        return -1;
    uint8_t byte = line->output[line->output_first];
    line->output_first = (line->output_first + 1) % TERMINAL_OUTPUT_MAX;
    line->output_used--;
    return byte;
}

uint32_t terminal_take(struct line *line, uint8_t *to, uint32_t most)
{
    uint32_t taken = 0;
    while (taken < most && line->output_used)
        to[taken++] = terminal_next(line);
    return taken;
}

uint32_t terminal_room(const struct line *line)
{
    uint32_t most = TERMINAL_OUTPUT_MAX - ECHO_ROOM;
    /* Each byte may become two. */
    return line->output_used < most ? (most - line->output_used) / 2 : 0;
}

void terminal_write(struct line *line, const uint8_t *from, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        put_processed(line, from[i]);
    /* The next line of input is edited behind this output. */
    if (line->edit_used == 0)
        line->edit_column = line->column;
    if (line->output_used)
        line->driver->output(line);
}

/* Width of the echo of a byte at a column. */
static uint32_t width(uint8_t byte, uint32_t column)
{
    if (byte == '\t')
        return ((column | 7) + 1) - column;
    return byte < ' ' || byte == DELETE ? 2 : 1;
}

static void echo(struct line *line, uint8_t byte)
{
    if (!(line->settings.flags & TERMINAL_ECHO))
        return;
    if (line->edit_used == 0)
        line->edit_column = line->column;
    if (byte == '\n' || byte == '\t' || byte == BELL || (byte >= ' ' && byte != DELETE) ||
        !(line->settings.flags & TERMINAL_LINES)) {
        put_processed(line, byte);
    } else {
        put_processed(line, '^');
        put_processed(line, byte ^ 0x40);
    }
}

/* Takes the last byte off the edited line, and off the screen. */
static void erase(struct line *line)
{
    if (line->edit_used == 0)
        return;
    uint32_t column = line->edit_column;
    for (uint32_t i = 0; i + 1 < line->edit_used; i++)
        column += width(line->edit[i], column);
    uint32_t wide = width(line->edit[--line->edit_used], column);
    if (!(line->settings.flags & TERMINAL_ECHO))
        return;
    for (uint32_t i = 0; i < wide; i++) {
        put_processed(line, BACKSPACE);
        put_processed(line, ' ');
        put_processed(line, BACKSPACE);
    }
}

static int is_blank(uint8_t byte)
{
    return byte == ' ' || byte == '\t';
}

static void erase_word(struct line *line)
{
    while (line->edit_used && is_blank(line->edit[line->edit_used - 1]))
        erase(line);
    while (line->edit_used && !is_blank(line->edit[line->edit_used - 1]))
        erase(line);
}

static int add_input(struct line *line, uint16_t entry)
{
    if (line->input_used == TERMINAL_INPUT_MAX)
        return 0;
    line->input[(line->input_first + line->input_used++) % TERMINAL_INPUT_MAX] = entry;
    line->lines += (entry & LINE_END) != 0;
    return 1;
}

int terminal_has_room(const struct line *line)
{
    return line->input_used + TERMINAL_EDIT_MAX < TERMINAL_INPUT_MAX;
}

/* Makes the edited line one that can be read. Returns whether there was room. */
static int finish_line(struct line *line, int end)
{
    if (TERMINAL_INPUT_MAX - line->input_used < line->edit_used + 1)
        return 0;
    for (uint32_t i = 0; i < line->edit_used; i++)
        add_input(line, line->edit[i] | (end < 0 && i + 1 == line->edit_used ? LINE_END : 0));
    if (end >= 0)
        add_input(line, (uint16_t)end | LINE_END);
    else if (line->edit_used == 0)
        add_input(line, NO_BYTE | LINE_END);
    line->edit_used = 0;
    return 1;
}

void terminal_signal(struct line *line, uint32_t signal)
{
    line->input_used = line->lines = line->edit_used = 0;
    if (line->settings.group == 0)
        return;
    /* PM may be waiting for FS: so it is sent without waiting. */
    struct message m = {.type = PM_SIGNAL_GROUP, .w = {line->settings.group, signal}};
    server_post(SERVICE(PM), &m);
}

/* Handles the characters that send signals. */
static int input_signal(struct line *line, uint8_t byte)
{
    const struct terminal *s = &line->settings;
    uint32_t signal;
    if (!(s->flags & TERMINAL_SIGNALS) || byte == 0)
        return 0;
    if (byte == s->interrupt)
        signal = SIGINT;
    else if (byte == s->quit)
        signal = SIGQUIT;
    else if (byte == s->suspend)
        signal = SIGTSTP;
    else
        return 0;
    /* What was to be put out is of no interest any more. */
    line->output_used = 0;
    echo(line, byte);
    terminal_signal(line, signal);
    return 1;
}

static void input_line(struct line *line, uint8_t byte)
{
    const struct terminal *s = &line->settings;
    if (byte == s->erase || byte == BACKSPACE) {
        erase(line);
    } else if (byte == s->kill) {
        while (line->edit_used)
            erase(line);
    } else if (byte == ERASE_WORD) {
        erase_word(line);
    } else if (byte == '\n') {
        echo(line, finish_line(line, '\n') ? '\n' : BELL);
    } else if (byte == s->end) {
        if (!finish_line(line, -1))
            echo(line, BELL);
    } else if (line->edit_used < TERMINAL_EDIT_MAX) {
        echo(line, byte);
        line->edit[line->edit_used++] = byte;
    } else {
        echo(line, BELL);
    }
}

static void input(struct line *line, uint8_t byte)
{
    if (input_signal(line, byte))
        return;
    if ((line->settings.flags & TERMINAL_INPUT) && byte == '\r')
        byte = '\n';
    if (line->settings.flags & TERMINAL_LINES) {
        input_line(line, byte);
    } else if (add_input(line, byte)) {
        echo(line, byte);
    }
}

void terminal_input(struct line *line, uint8_t byte)
{
    input(line, byte);
    if (line->output_used)
        line->driver->output(line);
}

void terminal_input_string(struct line *line, const char *bytes)
{
    while (*bytes)
        input(line, (uint8_t)*bytes++);
    if (line->output_used)
        line->driver->output(line);
}

int terminal_can_read(const struct line *line)
{
    return line->settings.flags & TERMINAL_LINES ? line->lines > 0 : line->input_used > 0;
}

uint32_t terminal_read(struct line *line, uint8_t *to, uint32_t bytes)
{
    uint32_t got = 0;
    int whole_lines = (line->settings.flags & TERMINAL_LINES) != 0;
    while (got < bytes && line->input_used) {
        uint16_t entry = line->input[line->input_first];
        line->input_first = (line->input_first + 1) % TERMINAL_INPUT_MAX;
        line->input_used--;
        line->lines -= (entry & LINE_END) != 0;
        if (!(entry & NO_BYTE))
            to[got++] = (uint8_t)entry;
        if (whole_lines && (entry & LINE_END))
            break;
    }
    return got;
}

void terminal_change(struct line *line, const struct terminal *settings)
{
    uint32_t before = line->settings.flags, after = settings->flags;
    line->settings = *settings;
    if ((before & TERMINAL_LINES) && !(after & TERMINAL_LINES)) {
        for (uint32_t i = 0; i < line->edit_used; i++)
            add_input(line, line->edit[i]);
        line->edit_used = 0;
    } else if (!(before & TERMINAL_LINES) && (after & TERMINAL_LINES) && line->input_used) {
        /* What has been typed so far is a line. */
        uint16_t *last = &line->input[(line->input_first + line->input_used - 1) % TERMINAL_INPUT_MAX];
        line->lines += !(*last & LINE_END);
        *last |= LINE_END;
    }
}
