/* Ends of programs. */

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FUNCTIONS 32

static void (*functions[FUNCTIONS])(void);
static int used;

/* stdio's, when the program has it: writes what is in buffers. */
void (*flush_files)(void);

int atexit(void (*function)(void))
{
    if (used == FUNCTIONS)
        return -1;
    functions[used++] = function;
    return 0;
}

void exit(int status)
{
    while (used)
        functions[--used]();
    if (flush_files)
        flush_files();
    _exit(status);
}

void _Exit(int status)
{
    _exit(status);
}

void abort(void)
{
    kill(getpid(), SIGABRT);
    _exit(127);
}
