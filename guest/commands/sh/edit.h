/* Editing of the line that is typed. */

#ifndef EDIT_H
#define EDIT_H

#define EDIT_BYTES 4096

enum { EDIT_LINE, EDIT_INTERRUPTED, EDIT_END };

/* Lets the user edit a line behind the prompt; *text is what it is then, without its end. */
int edit_line(const char *prompt, const char **text);

#endif
