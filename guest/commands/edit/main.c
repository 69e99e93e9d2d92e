/* edit FILE: changes a text on the whole screen. ^S saves, ^Q ends, ^W searches, ^N again, ^G goes to a line,
   ^K takes a line out, ^V puts it in, ^Z undoes the last change. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <tern/keys.h>
#include <unistd.h>
#include "edit.h"

#define HELP "^S save ^Q quit ^W search ^N next ^G line ^K cut ^V paste ^Z undo"

static const char *path;
static char message[160], sought[80];
static char *cut;
static size_t cut_bytes, wanted_column;

static int load(void)
{
    int fd = open(path, O_RDONLY), result = 0;
    if (fd >= 0) {
        result = buffer_load(fd);
        close(fd);
    } else {
        result = errno == ENOENT ? 0 : -1;
        snprintf(message, sizeof message, "new file  " HELP);
    }
    if (result)
        fprintf(stderr, "edit: %s: %s\n", path, strerror(errno));
    return result;
}

static void save(void)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || buffer_save(fd))
        snprintf(message, sizeof message, "NOT SAVED: %s", strerror(errno));
    else
        snprintf(message, sizeof message, "saved %zu bytes", buffer_length());
    if (fd >= 0)
        close(fd);
}

/* Moves by lines, to the column where vertical moves began. */
static void move_lines(int lines)
{
    size_t place = line_start(cursor);
    for (; lines < 0 && place > 0; lines++)
        place = line_start(place - 1);
    for (; lines > 0 && line_end(place) < buffer_length(); lines--)
        place = line_end(place) + 1;
    move_to(place_in_line(place, wanted_column));
}

static void search(int again)
{
    char text[sizeof sought];
    if (!again || !*sought) {
        if (!ask("Search", text, sizeof text))
            return;
        strcpy(sought, text);
    }
    if (!find(sought))
        snprintf(message, sizeof message, "%s is not there", sought);
}

static void go_to_line(void)
{
    char text[16];
    if (!ask("Line", text, sizeof text))
        return;
    unsigned long line = strtoul(text, NULL, 10);
    size_t place = 0;
    while (line > 1 && (place = line_end(place)) < buffer_length() && --line)
        place++;
    move_to(line_start(place));
}

static void cut_line(void)
{
    size_t end = line_end(cursor);
    move_to(line_start(cursor));
    cut_bytes = end + (end < buffer_length()) - cursor;
    cut = need(cut, cut_bytes + 1);
    for (size_t i = 0; i < cut_bytes; i++)
        cut[i] = (char)byte_at(cursor + i);
    if (cut_bytes)
        replace(cut_bytes, "", 0);
}

/* Returns whether the editor ends. If there are changes that are not saved, it asks. */
static int ends(void)
{
    char answer[8];
    return !modified
           || (ask("Not saved. Type y to lose the changes", answer, sizeof answer) && *answer == 'y');
}

static void type(int key)
{
    char c = key == '\r' ? '\n' : (char)key;
    if (key < 256 && (key >= ' ' || c == '\n' || c == '\t'))
        replace(0, &c, 1);
}

static void move(int key)
{
    switch (key) {
    case KEY_LEFT: move_to(cursor - (cursor > 0)); break;
    case KEY_RIGHT: move_to(cursor + (cursor < buffer_length())); break;
    case KEY_HOME: case CONTROL('A'): move_to(line_start(cursor)); break;
    case KEY_END: case CONTROL('E'): move_to(line_end(cursor)); break;
    case KEY_UP: move_lines(-1); break;
    case KEY_DOWN: move_lines(1); break;
    case KEY_PAGE_UP: move_lines(-screen_rows()); break;
    case KEY_PAGE_DOWN: move_lines(screen_rows()); break;
    }
}

static void execute(int key)
{
    switch (key) {
    case CONTROL('S'): case CONTROL('O'): save(); break;
    case CONTROL('W'): search(0); break;
    case CONTROL('N'): search(1); break;
    case CONTROL('G'): go_to_line(); break;
    case CONTROL('K'): cut_line(); break;
    case CONTROL('V'): if (cut_bytes) replace(0, cut, cut_bytes); break;
    case CONTROL('Z'): if (!undo()) strcpy(message, "nothing to undo"); break;
    case KEY_DELETE: case CONTROL('D'): if (cursor < buffer_length()) replace(1, "", 0); break;
    case '\b': case 127: erase_before(); break;
    case KEY_LEFT: case KEY_RIGHT: case KEY_HOME: case KEY_END: case KEY_UP: case KEY_DOWN: case KEY_PAGE_UP:
    case KEY_PAGE_DOWN: case CONTROL('A'): case CONTROL('E'): move(key); break;
    default: type(key);
    }
    if (key != KEY_UP && key != KEY_DOWN && key != KEY_PAGE_UP && key != KEY_PAGE_DOWN)
        wanted_column = column_of(cursor);
}

int main(int argc, char **argv)
{
    int key;
    if (getopt(argc, argv, "") != -1 || argc - optind != 1)
        return usage("edit FILE");
    path = argv[optind];
    snprintf(message, sizeof message, HELP);
    if (load())
        return 1;
    screen_start();
    do {
        screen_show(path, message);
        snprintf(message, sizeof message, HELP);
        key = read_key();
        if (key != CONTROL('Q') && key != CONTROL('X'))
            execute(key);
    } while (key >= 0 && !((key == CONTROL('Q') || key == CONTROL('X')) && ends()));
    screen_end();
    return key < 0;
}
