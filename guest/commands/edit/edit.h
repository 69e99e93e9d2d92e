/* The parts of the editor. */

#ifndef EDIT_H
#define EDIT_H

#include <stddef.h>

/* The text, and the place where it is edited. */
extern size_t cursor;
extern unsigned long cursor_line;  /* counted from 1 */
extern int modified;

int buffer_load(int fd);           /* 0 or -1 (errno) */
int buffer_save(int fd);
size_t buffer_length(void);
int byte_at(size_t place);
size_t line_start(size_t place);
size_t line_end(size_t place);     /* the newline's place, or that of the text's end */
void move_to(size_t place);        /* ends a step for undo */
/* what follows the cursor; it goes behind the text */
void replace(size_t count, const char *text, size_t bytes);
void erase_before(void);
int undo(void);                    /* undoes the last change; once more, the undoing */
int find(const char *text);        /* moves to the next place with the text, from the start after the end */

/* The screen: rows of text, and below them one with the state. */
void screen_start(void);
void screen_end(void);
int screen_rows(void);             /* of text */
size_t column_of(size_t place);
size_t place_in_line(size_t start, size_t column);
void screen_changed_from(size_t place);
void screen_show(const char *name, const char *message);
int ask(const char *question, char *answer, size_t bytes); /* 0 if it is cancelled */

#endif
