/* stty [[-]echo] [[-]icanon] [[-]isig] [[-]onlcr] [[-]icrnl] [sane] [rows N] [cols N] [SPEED]: shows or sets
   the terminal of standard input. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

static const struct {
    const char *name;
    unsigned flag;
} flags[] = {{"echo", TERMINAL_ECHO}, {"icanon", TERMINAL_LINES}, {"isig", TERMINAL_SIGNALS},
             {"onlcr", TERMINAL_OUTPUT}, {"icrnl", TERMINAL_INPUT}};

#define FLAGS (sizeof flags / sizeof *flags)

static int set_flag(struct terminal *state, const char *word)
{
    int off = *word == '-';
    for (size_t i = 0; i < FLAGS; i++) {
        if (strcmp(word + off, flags[i].name))
            continue;
        state->flags = off ? state->flags & ~flags[i].flag : state->flags | flags[i].flag;
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct terminal state;
    if (terminal_get(0, &state)) {
        perror("stty");
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        if (set_flag(&state, argv[i]))
            continue;
        if (strcmp(argv[i], "sane") == 0)
            state.flags =
                TERMINAL_ECHO | TERMINAL_LINES | TERMINAL_SIGNALS | TERMINAL_OUTPUT | TERMINAL_INPUT;
        else if (strcmp(argv[i], "rows") == 0 && i + 1 < argc)
            state.rows = atoi(argv[++i]);
        else if (strcmp(argv[i], "cols") == 0 && i + 1 < argc)
            state.columns = atoi(argv[++i]);
        else if (*argv[i] >= '0' && *argv[i] <= '9')
            state.speed = strtoul(argv[i], NULL, 10);
        else
            fprintf(stderr, "stty: %s means nothing\n", argv[i]);
    }
    if (argc > 1 && terminal_set(0, &state)) {
        perror("stty");
        return 1;
    }
    if (argc > 1)
        return 0;
    printf("speed %u; rows %u; columns %u\n", (unsigned)state.speed, state.rows, state.columns);
    for (size_t i = 0; i < FLAGS; i++)
        printf("%s%s ", state.flags & flags[i].flag ? "" : "-", flags[i].name);
    putchar('\n');
    return 0;
}
