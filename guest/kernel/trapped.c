/* IN, OUT, INS and OUTS of processes of ring 3, which raise #GP (SDM vol. 1, 19.5): the kernel checks the
   rights and executes them. */

#include "kernel.h"

#define PREFIXES_MAX 4
#define DIRECTION 0x400u           /* EFLAGS.DF */
#define ELEMENTS_MAX 1024u         /* of one visit; a longer string goes on with the next #GP */

/* An instruction, without the string part: opcode table (SDM vol. 2, A.3) E4 to E7, EC to EF; 6C to 6F. */
struct access {
    uint32_t direction, size, port;
    int is_string, repeats;
};

/* Reads the instruction at EIP. Returns its length, or 0 if it is none of these. */
static uint32_t decode(struct process *process, struct access *access)
{
    const struct frame *registers = process->context;
    uint32_t at = registers->eip, length = 0;
    int is_word = 0;
    uint8_t code;

    access->repeats = 0;
    for (int prefixes = 0; prefixes <= PREFIXES_MAX; prefixes++) {
        if (copy_in(process, &code, at + length++, 1) != 0)
            return 0;
        if (code == 0x66)
            is_word = 1;
        else if (code == 0xf3 || code == 0xf2)
            access->repeats = 1;
        else
            break;
    }
    access->size = code & 1 ? is_word ? 2 : 4 : 1;
    access->is_string = code >= 0x6c && code <= 0x6f;
    access->port = registers->edx & 0xffff;
    if (access->is_string || (code >= 0xec && code <= 0xef)) {
        access->direction = code & 2 ? IO_OUT : IO_IN;
        return length;
    }
    if (code < 0xe4 || code > 0xe7)
        return 0;
    access->direction = code & 2 ? IO_OUT : IO_IN;
    if (copy_in(process, &code, at + length++, 1) != 0)
        return 0;
    access->port = code;
    return length;
}

static void access_register(struct frame *registers, const struct access *access)
{
    uint32_t value;

    if (access->direction == IO_OUT) {
        port_out(access->size, access->port, registers->eax);
        return;
    }
    value = port_in(access->size, access->port);
    if (access->size == 4)
        registers->eax = value;
    else if (access->size == 2)
        registers->eax = (registers->eax & ~0xffffu) | (value & 0xffff);
    else
        registers->eax = (registers->eax & ~0xffu) | (value & 0xff);
}

/* Returns 0 if memory is missing, 1 if the instruction is done, 2 if elements are left. */
static int access_string(struct process *process, const struct access *access)
{
    struct frame *registers = process->context;
    uint32_t *pointer = access->direction == IO_IN ? &registers->edi : &registers->esi;
    uint32_t count = access->repeats ? registers->ecx : 1;
    uint32_t part = count < ELEMENTS_MAX ? count : ELEMENTS_MAX;

    if (registers->eflags & DIRECTION)
        return 0;
    if (port_string(process, access->direction, access->size, access->port, *pointer, part) != 0)
        return 0;
    *pointer += part * access->size;
    if (access->repeats)
        registers->ecx -= part;
    return part == count ? 1 : 2;
}

int trapped(struct process *process)
{
    struct access access;
    uint32_t length;
    int result = 1;

    if (!(process->rights.ways & BY_TRAP) || (length = decode(process, &access)) == 0)
        return 0;
    if (check_port(process, BY_TRAP, access.port, access.size) != 0)
        return 0;
    if (access.is_string)
        result = access_string(process, &access);
    else
        access_register(process->context, &access);
    if (result == 1)
        process->context->eip += length;
    return result;
}
