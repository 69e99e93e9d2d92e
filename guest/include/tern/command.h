/* What commands whose operands are files have in common. */

#ifndef TERN_COMMAND_H
#define TERN_COMMAND_H

#include <dirent.h>
#include <stdio.h>

/* Says how a command is used; returns the status for that, 2. */
int usage(const char *text);

/* Opens a file for reading; "-" is standard input. Says why if it fails. */
FILE *open_operand(const char *path);

/* Gives each of the files, or standard input if there are none, to `take`. Returns 1 if one could not be
   opened. */
int each_operand(int count, char *const paths[], void (*take)(FILE *file, const char *name));

/* Reads a line as getline does, without the newline. Returns its length, or -1 at the end. */
ssize_t read_line(char **line, size_t *room, FILE *file);

/* The next entry of the directory but for "." and "..", or NULL. Then *error is 0 at the end, or why the directory
   cannot be read further. */
struct dirent *next_entry(DIR *directory, int *error);

/* Memory, or the end of the program with a message and status 2. `memory` may be NULL. */
void *need(void *memory, size_t bytes);

#endif
