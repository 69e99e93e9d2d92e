/* The two 8259A (Intel 8259A data sheet), and who hears of each line. A line is masked when it interrupts,
   until all of its processes have enabled it again: their drivers have then dealt with the devices. */

#include "kernel.h"

#define COMMAND 0x20
#define MASK 0x21
#define COMMAND2 0xa0
#define MASK2 0xa1
#define FIRST_VECTOR 80
#define CASCADE 2
#define END 0x20                   /* OCW2: non-specific end of interrupt */
#define READ_SERVICE 0x0b          /* OCW3: the next read returns the in-service register */
#define SHARERS 4                  /* processes on one line */

static struct process *owners[16][SHARERS];
static uint8_t waits_for[16];      /* a bit for each owner that has not enabled the line since */
static uint16_t mask = 0xffff & ~(1 << CASCADE);

void line_mask(uint32_t line, int is_masked)
{
    mask = (uint16_t)(is_masked ? mask | 1 << line : mask & ~(1 << line));
    if (line < 8)
        out8(MASK, (uint8_t)mask);
    else
        out8(MASK2, (uint8_t)(mask >> 8));
}

void interrupts_start(void)
{
    /* ICW1: ICW4 follows; ICW2: vectors; ICW3: the cascade; ICW4: 8086 mode. */
    static const uint8_t words[4][2] = {{0x11, 0x11}, {FIRST_VECTOR, FIRST_VECTOR + 8},
                                        {1 << CASCADE, CASCADE}, {1, 1}};

    for (int i = 0; i < 4; i++) {
        out8(i == 0 ? COMMAND : MASK, words[i][0]);
        out8(i == 0 ? COMMAND2 : MASK2, words[i][1]);
    }
    out8(MASK, (uint8_t)mask);
    out8(MASK2, (uint8_t)(mask >> 8));
}

/* Returns whether a request of line 7 or 15 went away before it was acknowledged (data sheet, "IR7"). */
static int is_spurious(uint32_t line)
{
    uint16_t port = line == 7 ? COMMAND : COMMAND2;

    if (line % 8 != 7)
        return 0;
    out8(port, READ_SERVICE);
    if (in8(port) & 0x80)
        return 0;
    if (line == 15)
        out8(COMMAND, END);
    return 1;
}

void interrupt(uint32_t line)
{
    if (is_spurious(line))
        return;
    if (line != 0)
        line_mask(line, 1);
    if (line >= 8)
        out8(COMMAND2, END);
    out8(COMMAND, END);
    if (line == 0) {
        clock_interrupt();
        return;
    }
    for (int i = 0; i < SHARERS; i++) {
        if (owners[line][i] == NULL)
            continue;
        waits_for[line] |= (uint8_t)(1 << i);
        owners[line][i]->lines |= 1u << line;
        notify(HARDWARE, owners[line][i]);
    }
}

int line_set(struct process *process, uint32_t line)
{
    struct process **free = NULL;

    if (line == 0 || line == CASCADE)
        return -EINVAL;
    for (int i = 0; i < SHARERS; i++) {
        if (owners[line][i] == process)
            return 0;
        if (owners[line][i] == NULL)
            free = &owners[line][i];
    }
    if (free == NULL)
        return -EBUSY;
    *free = process;
    return 0;
}

int line_enable(struct process *process, uint32_t line, int is_enabled)
{
    for (int i = 0; i < SHARERS; i++) {
        if (owners[line][i] != process)
            continue;
        if (is_enabled)
            waits_for[line] &= (uint8_t)~(1 << i);
        else
            waits_for[line] |= (uint8_t)(1 << i);
        line_mask(line, waits_for[line] != 0);
        return 0;
    }
    return -EINVAL;
}

void lines_remove(struct process *process, uint32_t lines)
{
    for (uint32_t line = 0; line < 16; line++) {
        int users = 0, was_here = 0;
        for (int i = 0; i < SHARERS; i++) {
            if (lines >> line & 1 && owners[line][i] == process) {
                owners[line][i] = NULL;
                waits_for[line] &= (uint8_t)~(1 << i);
                was_here = 1;
            }
            users += owners[line][i] != NULL;
        }
        if (was_here)
            line_mask(line, users == 0 || waits_for[line] != 0);
    }
}
