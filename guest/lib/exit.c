/* Ends of programs. */

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FUNCTIONS 32

static void (*functions[FUNCTIONS])(void);
static int used;

/* stdio's, when the program has it: writes what is in buffers. Returns whether something of standard output is
   lost. */
int (*flush_files)(void);

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
    /* No program that has lost what it printed passes for one that has done its work. */
    if (flush_files && flush_files() && status == 0)
        status = 1;
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
