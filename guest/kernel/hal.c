/* Ports: accesses for all ways, and direct calls (tern/hal.h). */

#include "kernel.h"

#define STRING_MAX 65536u          /* bytes of one string, so that no call takes long */
#define VECTOR_MAX 64

uint32_t port_in(uint32_t size, uint32_t port)
{
    return size == 1 ? in8((uint16_t)port) : size == 2 ? in16((uint16_t)port) : in32((uint16_t)port);
}

void port_out(uint32_t size, uint32_t port, uint32_t value)
{
    if (size == 1)
        out8((uint16_t)port, (uint8_t)value);
    else if (size == 2)
        out16((uint16_t)port, (uint16_t)value);
    else
        out32((uint16_t)port, value);
}

static void in_string(uint32_t size, uint32_t port, void *to, uint32_t count)
{
    if (size == 1)
        __asm__ volatile("rep insb" : "+D"(to), "+c"(count) : "d"(port) : "memory");
    else if (size == 2)
        __asm__ volatile("rep insw" : "+D"(to), "+c"(count) : "d"(port) : "memory");
    else
        __asm__ volatile("rep insl" : "+D"(to), "+c"(count) : "d"(port) : "memory");
}

static void out_string(uint32_t size, uint32_t port, const void *from, uint32_t count)
{
    if (size == 1)
        __asm__ volatile("rep outsb" : "+S"(from), "+c"(count) : "d"(port) : "memory");
    else if (size == 2)
        __asm__ volatile("rep outsw" : "+S"(from), "+c"(count) : "d"(port) : "memory");
    else
        __asm__ volatile("rep outsl" : "+S"(from), "+c"(count) : "d"(port) : "memory");
}

int port_string(struct process *caller, uint32_t direction, uint32_t size, uint32_t port, uint32_t address,
                uint32_t elements)
{
    if (elements > STRING_MAX / size)
        return -EINVAL;
    while (elements > 0) {
        uint32_t here = (PAGE - address % PAGE) / size, split = 0;
        uint8_t *memory = space_byte(caller, address, direction == IO_IN);
        if (memory == NULL)
            return -EFAULT;
        if (here == 0) {
            /* An element that crosses a page's end. */
            if (direction == IO_IN)
                in_string(size, port, &split, 1);
            int error = direction == IO_IN ? copy_out(caller, address, &split, size)
                : copy_in(caller, &split, address, size);
            if (error != 0)
                return error;
            if (direction == IO_OUT)
                out_string(size, port, &split, 1);
            here = 1;
        } else {
            here = here < elements ? here : elements;
            if (direction == IO_IN)
                in_string(size, port, memory, here);
            else
                out_string(size, port, memory, here);
        }
        address += here * size;
        elements -= here;
    }
    return 0;
}

int port_vector(struct process *caller, uint32_t way, uint32_t address, uint32_t entries)
{
    struct port_access accesses[VECTOR_MAX];
    int error;

    if (entries > VECTOR_MAX)
        return -EINVAL;
    if (copy_in(caller, accesses, address, entries * sizeof accesses[0]) != 0)
        return -EFAULT;
    /* Nothing is done if anything is not allowed. */
    for (uint32_t i = 0; i < entries; i++) {
        struct port_access *a = &accesses[i];
        if (a->direction > IO_OUT || (a->size != 1 && a->size != 2 && a->size != 4))
            return -EINVAL;
        if ((error = check_port(caller, way, a->port, a->size)) != 0)
            return error;
    }
    for (uint32_t i = 0; i < entries; i++) {
        struct port_access *a = &accesses[i];
        if (a->direction == IO_IN)
            a->value = port_in(a->size, a->port);
        else
            port_out(a->size, a->port, a->value);
    }
    return copy_out(caller, address, accesses, entries * sizeof accesses[0]);
}

/* The copy of HAL_COPY. */
static int copy_directly(struct process *caller, uint32_t address)
{
    struct safe_copy copy;

    if (!(caller->rights.calls >> SYS_SAFECOPY & 1))
        return denied(caller, ECALLDENIED, SYS_SAFECOPY);
    if (copy_in(caller, &copy, address, sizeof copy) != 0)
        return -EFAULT;
    return copy_granted(caller, &copy);
}

static int enable_directly(struct process *caller, uint32_t line)
{
    if (!(caller->rights.calls >> SYS_IRQCTL & 1))
        return denied(caller, ECALLDENIED, SYS_IRQCTL);
    return line_control(caller, IRQ_ENABLE, line);
}

static int umap_directly(struct process *caller)
{
    struct frame *registers = caller->context;
    uint8_t *byte;

    if (!(caller->rights.calls >> SYS_UMAP & 1))
        return denied(caller, ECALLDENIED, SYS_UMAP);
    if ((byte = space_byte(caller, registers->ebx, 0)) == NULL)
        return -EFAULT;
    registers->ecx = (uint32_t)byte - KERNEL_BASE;
    return 0;
}

/* Executes the direct call in the caller's registers. Returns its EAX. */
int hal(struct process *caller)
{
    static const uint8_t sizes[] = {1, 2, 4};
    struct frame *registers = caller->context;
    uint32_t function = registers->eax, port = registers->ebx, size;
    uint64_t count;
    int error;

    /* These are no accesses to ports: the rights to the kernel calls count. */
    if (function == HAL_COPY)
        return copy_directly(caller, registers->esi);
    if (function == HAL_IRQ_ENABLE)
        return enable_directly(caller, registers->ebx);
    if (function == HAL_UMAP)
        return umap_directly(caller);
    if (!(caller->rights.ways & BY_DIRECT_CALL))
        return denied(caller, EPORTDENIED, port);
    if (function >= HAL_IN_BYTE && function <= HAL_OUT_DOUBLES) {
        size = sizes[(function - 1) % 3];
        if ((error = check_port(caller, BY_DIRECT_CALL, port, size)) != 0)
            return error;
        if (function <= HAL_IN_DOUBLE)
            registers->ecx = port_in(size, port);
        else if (function <= HAL_OUT_DOUBLE)
            port_out(size, port, registers->ecx);
        else
            return port_string(caller, function <= HAL_IN_DOUBLES ? IO_IN : IO_OUT, size, port,
                               registers->esi, registers->ecx);
        return 0;
    }
    switch (function) {
    case HAL_VECTOR_ACCESS:
        return port_vector(caller, BY_DIRECT_CALL, registers->esi, registers->ecx);
    case HAL_TSC:
        count = tsc();
        registers->ecx = (uint32_t)count;
        registers->edx = (uint32_t)(count >> 32);
        return 0;
    case HAL_NOTHING:
        return 0;
    }
    return -ENOSYS;
}
