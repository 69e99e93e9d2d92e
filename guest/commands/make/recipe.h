/* Executes recipes. */

#ifndef RECIPE_H
#define RECIPE_H

struct file;

extern unsigned long commands_executed; /* or shown, with -n */

/* Executes the file's recipe with the variables of `scope`. Returns whether it failed. */
int recipe_execute(struct file *file);

#endif
