/*
 * What leaves ordinary execution: device registers, privileged instructions, interrupts, exceptions, far
 * transfers and tasks, one at a time and again and again. A kernel by the Multiboot Specification for `ring3
 * bench exits`, which talks to it by COM1:
 *
 *   list          prints the name and the count of each row that this machine has
 *   NAME COUNT    does it so often, and prints the name and what was computed
 *   ticks ...     counts the ticks of a timer, as ticks.c says
 *
 * It halts while it waits for a command.
 */

#include "exits.h"

#define PROMPT "ring3:~# "
#define LINE 64

extern const struct row __start_rows[], __stop_rows[];

static int is_present(const struct row *row) {
    return !row->present || row->present();
}

int begins(const char *line, const char *name, const char **rest) {
    while (*name && *line == *name) {
        line++;
        name++;
    }
    *rest = line;
    return !*name && (!*line || *line == ' ');
}

uint32_t number(const char **text) {
    uint32_t number = 0;
    while (**text == ' ')
        ++*text;
    while (**text >= '0' && **text <= '9')
        number = number * 10 + (uint32_t)(*(*text)++ - '0');
    return number;
}

static void execute(const char *line) {
    const char *rest;
    int lists = begins(line, "list", &rest);
    if (begins(line, "ticks", &rest)) {
        count_ticks(rest);
        return;
    }
    for (const struct row *row = __start_rows; row < __stop_rows; row++) {
        if (!is_present(row))
            continue;
        if (lists) {
            put(row->name);
            put(" ");
            put_number(row->count);
            put("\r\n");
        } else if (begins(line, row->name, &rest)) {
            uint32_t result = row->run(number(&rest));
            put(row->name);
            put(" ");
            put_hex(result);
            put("\r\n");
            return;
        }
    }
    if (!lists)
        put("no such row\r\n");
}

void begin(void) {
    char line[LINE];
    prepare_machine();
    prepare_serial();
    for (;;) {
        unsigned length = 0;
        char typed;
        put(PROMPT);
        while ((typed = get()) != '\n') {
            char echo[2] = {typed, 0};
            put(echo);
            if (length < LINE - 1)
                line[length++] = typed;
        }
        line[length] = 0;
        put("\r\n");
        execute(line);
    }
}
