/* The text: bytes with a gap at the place that is edited, so that changes move little. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <tern/files.h>
#include <unistd.h>
#include "edit.h"

#define ROOM 65536

static char *bytes;
static size_t gap, gap_end, room;  /* the gap is from `gap` to before `gap_end` */

size_t cursor;
unsigned long cursor_line = 1;
int modified;

/* The last change: what it took out, and how much it put in. */
static struct {
    size_t at, removed, inserted;
    char *text;
    int ended;
} change = {.ended = 1};

size_t buffer_length(void)
{
    return room - (gap_end - gap);
}

int byte_at(size_t place)
{
    return (unsigned char)bytes[place < gap ? place : place + (gap_end - gap)];
}

static void move_gap(size_t place)
{
    if (place < gap)
        memmove(bytes + gap_end - (gap - place), bytes + place, gap - place);
    else
        memmove(bytes + gap, bytes + gap_end, place - gap);
    gap_end = gap_end - gap + place;
    gap = place;
}

static void widen_gap(size_t wanted)
{
    size_t after = room - gap_end;
    if (gap_end - gap >= wanted)
        return;
    room += wanted + room / 2 + ROOM;
    bytes = need(bytes, room);
    memmove(bytes + room - after, bytes + gap_end, after);
    gap_end = room - after;
}

int buffer_load(int fd)
{
    for (;;) {
        widen_gap(ROOM);
        ssize_t got = read(fd, bytes + gap, gap_end - gap);
        if (got < 0)
            return -1;
        if (got == 0)
            return 0;
        gap += got;
    }
}

int buffer_save(int fd)
{
    if (write_all(fd, bytes, gap) || write_all(fd, bytes + gap_end, room - gap_end))
        return -1;
    modified = 0;
    return 0;
}

size_t line_start(size_t place)
{
    while (place > 0 && byte_at(place - 1) != '\n')
        place--;
    return place;
}

size_t line_end(size_t place)
{
    while (place < buffer_length() && byte_at(place) != '\n')
        place++;
    return place;
}

static void go(size_t place)
{
    for (; cursor < place; cursor++)
        cursor_line += byte_at(cursor) == '\n';
    for (; cursor > place; cursor--)
        cursor_line -= byte_at(cursor - 1) == '\n';
}

void move_to(size_t place)
{
    change.ended = 1;
    go(place);
}

static void begin_change(size_t at)
{
    free(change.text);
    memset(&change, 0, sizeof change);
    change.at = at;
}

/* Notes text that is taken out, before or behind what the change has taken out already. */
static void note_removed(const char *text, size_t count, int before)
{
    change.text = need(change.text, change.removed + count);
    if (before)
        memmove(change.text + count, change.text, change.removed);
    memcpy(change.text + (before ? 0 : change.removed), text, count);
    change.removed += count;
}

void replace(size_t count, const char *text, size_t more)
{
    int goes_on = !change.ended && cursor == change.at + change.inserted && (!count || !more);
    if (count > buffer_length() - cursor)
        count = buffer_length() - cursor;
    if (!goes_on)
        begin_change(cursor);
    move_gap(cursor);
    if (count)
        note_removed(bytes + gap_end, count, 0);
    gap_end += count;
    widen_gap(more);
    screen_changed_from(cursor);
    memcpy(bytes + gap, text, more);
    gap += more;
    change.inserted += more;
    go(cursor + more);
    modified = 1;
}

/* Takes out the character before the cursor. */
void erase_before(void)
{
    if (!cursor)
        return;
    int goes_on = !change.ended && cursor == change.at + change.inserted;
    if (!goes_on)
        begin_change(cursor);
    go(cursor - 1);
    move_gap(cursor);
    if (change.inserted) {
        change.inserted--;
    } else {
        note_removed(bytes + gap_end, 1, 1);
        change.at--;
    }
    gap_end++;
    screen_changed_from(cursor);
    modified = 1;
}

int undo(void)
{
    size_t removed = change.removed, inserted = change.inserted;
    char *text = change.text;
    if (!removed && !inserted)
        return 0;
    change.text = NULL;
    move_to(change.at);
    replace(inserted, text, removed);
    change.ended = 1;
    free(text);
    return 1;
}

int find(const char *text)
{
    size_t length = buffer_length(), count = strlen(text), from = cursor < length ? cursor + 1 : length;
    move_gap(length);
    char *found = memmem(bytes + from, length - from, text, count);
    if (!found)
        found = memmem(bytes, from + count - 1 < length ? from + count - 1 : length, text, count);
    if (found)
        move_to(found - bytes);
    return found != NULL;
}
