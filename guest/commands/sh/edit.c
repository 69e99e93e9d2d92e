/* Editing of the line that is typed: cursor keys, Home, End, Delete, ^A ^E ^B ^F ^K ^U ^W ^L, and the lines
   typed before by the keys up and down. The terminal gives each character at once meanwhile. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <tern/keys.h>
#include <unistd.h>
#include "edit.h"

#define HISTORY 64
#define BELL 7

static char *history[HISTORY];
static unsigned history_count; /* of all lines ever; the last HISTORY are kept */

static struct line {
    const char *prompt;
    char text[EDIT_BYTES];
    size_t used, cursor;
    unsigned shown;            /* which line of the history; history_count: none */
} line;

static void show(void)
{
    size_t after = line.used - line.cursor;
    fprintf(stderr, "\r%s%.*s\033[K", line.prompt, (int)line.used, line.text);
    if (after)
        fprintf(stderr, "\033[%uD", (unsigned)after);
    fflush(stderr);
}

static void insert(char c)
{
    memmove(line.text + line.cursor + 1, line.text + line.cursor, line.used - line.cursor);
    line.text[line.cursor++] = c;
    line.used++;
}

static void delete(size_t from, size_t to)
{
    memmove(line.text + from, line.text + to, line.used - to);
    line.used -= to - from;
    line.cursor = from;
}

static size_t word_start(void)
{
    size_t at = line.cursor;
    while (at && line.text[at - 1] == ' ')
        at--;
    while (at && line.text[at - 1] != ' ')
        at--;
    return at;
}

static void recall(unsigned number)
{
    if (number > history_count || (history_count > HISTORY && number < history_count - HISTORY))
        return;
    const char *text = number < history_count ? history[number % HISTORY] : "";
    line.shown = number;
    line.used = line.cursor = strlen(text);
    memcpy(line.text, text, line.used);
}

static void edit(int key)
{
    switch (key) {
    case KEY_UP: case CONTROL('P'): if (line.shown) recall(line.shown - 1); break;
    case KEY_DOWN: case CONTROL('N'): recall(line.shown + 1); break;
    case KEY_LEFT: case CONTROL('B'): line.cursor -= line.cursor > 0; break;
    case KEY_RIGHT: case CONTROL('F'): line.cursor += line.cursor < line.used; break;
    case KEY_HOME: case CONTROL('A'): line.cursor = 0; break;
    case KEY_END: case CONTROL('E'): line.cursor = line.used; break;
    case CONTROL('K'): line.used = line.cursor; break;
    case CONTROL('U'): delete(0, line.cursor); break;
    case CONTROL('W'): delete(word_start(), line.cursor); break;
    case CONTROL('L'): fputs("\033[H\033[J", stderr); break;
    case 8: case 127: if (line.cursor) delete(line.cursor - 1, line.cursor); break;
    case KEY_DELETE:
    case CONTROL('D'):
        if (line.cursor < line.used)
            delete(line.cursor, line.cursor + 1);
        break;
    default: if (key >= ' ' && key < 256) insert(key);
    }
}

static void remember(void)
{
    const char *last = history_count ? history[(history_count - 1) % HISTORY] : "";
    if (line.used == 0 || (strlen(last) == line.used && memcmp(last, line.text, line.used) == 0))
        return;
    char *copy = malloc(line.used + 1);
    if (!copy)
        return;
    memcpy(copy, line.text, line.used);
    copy[line.used] = 0;
    free(history[history_count % HISTORY]);
    history[history_count++ % HISTORY] = copy;
}

static int read_keys(void)
{
    for (;;) {
        int key = read_key();
        if (key == -1 || key == CONTROL('C') || (key == CONTROL('D') && line.used == 0))
            return key == CONTROL('C') ? EDIT_INTERRUPTED : EDIT_END;
        if (key == '\n' || key == '\r')
            return EDIT_LINE;
        /* At the end a character needs no more than itself. */
        int simple = key >= ' ' && key < 127 && line.cursor == line.used;
        if (key >= ' ' && key < 256 && key != 127 && line.used + 1 == EDIT_BYTES) {
            fputc(BELL, stderr), fflush(stderr);
            continue;
        }
        edit(key);
        if (simple)
            fputc(key, stderr), fflush(stderr);
        else
            show();
    }
}

int edit_line(const char *prompt, const char **text)
{
    struct terminal saved, raw;
    if (terminal_get(0, &saved))
        return EDIT_END;
    raw = saved;
    raw.flags &= ~(TERMINAL_ECHO | TERMINAL_LINES | TERMINAL_SIGNALS);
    terminal_set(0, &raw);
    line.prompt = prompt;
    line.used = line.cursor = 0;
    line.shown = history_count;
    show();
    int result = read_keys();
    fputc('\n', stderr);
    terminal_set(0, &saved);
    remember();
    line.text[line.used] = 0;
    *text = line.text;
    return result;
}
