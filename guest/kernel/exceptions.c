/* What each vector leads to. */

#include "kernel.h"

#define PAGE_FAULT_WRITE 2u        /* of the error code (SDM vol. 3, 4.7) */
#define FIRST_LINE 80
#define TIMER 96
#define EXCEPTIONS 32

struct frame *trap(struct frame *registers);

/* An exception that the kernel cannot mend: the process's manager decides. */
static void stop(uint32_t vector, uint32_t address)
{
    if (current->rights.manager >= SERVICES || service(current->rights.manager) == NULL
        || service(current->rights.manager) == current)
        panic("%s: exception %u at %x, address %x, error %x\n", current->name, vector, current->context->eip,
              address, current->context->error);
    raise_event(current, EVENT_EXCEPTION, vector, address);
    current->state |= STATE_STOPPED;
    make_unready(current);
}

static void exception(struct frame *registers)
{
    uint32_t vector = registers->vector, address = vector == 14 ? fault_address() : 0;

    if (!(registers->cs & 3) && registers->eip >= KERNEL_BASE)
        panic("exception %u in the kernel at %x, address %x, error %x\n", vector, registers->eip, address,
              registers->error);
    switch (vector) {
    case 7:
        numbers_use();
        return;
    case 13:
        if (trapped(current))
            return;
        break;
    case 14:
        if (space_byte(current, address, registers->error & PAGE_FAULT_WRITE) != NULL)
            return;
        break;
    }
    stop(vector, address);
}

/* Handles a trap of `current`, whose registers are at `registers`; returns the context of who runs next. */
struct frame *trap(struct frame *registers)
{
    uint32_t vector = registers->vector, operation;
    int result;

    current->context = registers = frame_of(current, registers);
    if (vector == IPC_VECTOR) {
        operation = registers->eax;
        /* A message that is there already, or comes later, sets the result itself. */
        registers->eax = 0;
        result = ipc(current, operation, registers->ebx, registers->esi, registers->ecx);
        if (result != 0)
            registers->eax = (uint32_t)result;
    } else if (vector == HAL_VECTOR) {
        registers->eax = (uint32_t)hal(current);
    } else if (vector < EXCEPTIONS) {
        exception(registers);
    } else if (vector >= FIRST_LINE && vector < FIRST_LINE + 16) {
        interrupt(vector - FIRST_LINE);
    } else if (vector == TIMER) {
        clock_interrupt();
    }
    return run_next();
}
