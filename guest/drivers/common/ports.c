/* Access to ports. */

#include <string.h>
#include <tern/lib.h>
#include <tern/rights.h>
#include "ports.h"

uint32_t port_failures;

static uint32_t way = BY_MESSAGE;

int ports_choose(const char *name)
{
    static const struct {
        const char *name;
        uint32_t way;
    } ways[] = {{"message", BY_MESSAGE}, {"direct", BY_DIRECT_CALL},
                {"trap", BY_TRAP}, {"bitmap", BY_BITMAP}, {"kernel", BY_KERNEL}};
    for (uint32_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(name, ways[i].name) == 0) {
            way = ways[i].way;
            return 1;
        }
    return 0;
}

/* IN and OUT themselves. The kernel executes them after #GP (BY_TRAP), or the processor does. */
static uint32_t execute_in(uint32_t size, uint16_t port)
{
    uint32_t value = 0;
    if (size == 1)
        __asm__ volatile("inb %%dx, %%al" : "+a"(value) : "d"((uint32_t)port));
    else if (size == 2)
        __asm__ volatile("inw %%dx, %%ax" : "+a"(value) : "d"((uint32_t)port));
    else
        __asm__ volatile("inl %%dx, %%eax" : "+a"(value) : "d"((uint32_t)port));
    return value;
}

static void execute_out(uint32_t size, uint16_t port, uint32_t value)
{
    if (size == 1)
        __asm__ volatile("outb %%al, %%dx" : : "a"(value), "d"((uint32_t)port));
    else if (size == 2)
        __asm__ volatile("outw %%ax, %%dx" : : "a"(value), "d"((uint32_t)port));
    else
        __asm__ volatile("outl %%eax, %%dx" : : "a"(value), "d"((uint32_t)port));
}

static void execute_string(uint32_t direction, uint32_t size, uint16_t port, void *address, uint32_t count)
{
    uint32_t p = port;
    if (direction == IO_IN) {
        if (size == 1)
            __asm__ volatile("cld; rep insb" : "+D"(address), "+c"(count) : "d"(p) : "memory", "cc");
        else if (size == 2)
            __asm__ volatile("cld; rep insw" : "+D"(address), "+c"(count) : "d"(p) : "memory", "cc");
        else
            __asm__ volatile("cld; rep insl" : "+D"(address), "+c"(count) : "d"(p) : "memory", "cc");
    } else {
        if (size == 1)
            __asm__ volatile("cld; rep outsb" : "+S"(address), "+c"(count) : "d"(p) : "memory", "cc");
        else if (size == 2)
            __asm__ volatile("cld; rep outsw" : "+S"(address), "+c"(count) : "d"(p) : "memory", "cc");
        else
            __asm__ volatile("cld; rep outsl" : "+S"(address), "+c"(count) : "d"(p) : "memory", "cc");
    }
}

/* The functions of INT 31h are in the order of the sizes: bytes, words, doubles. */
static uint32_t of_size(uint32_t function, uint32_t size)
{
    return function + (size == 4 ? 2 : size - 1);
}

static uint32_t in(uint32_t size, uint16_t port)
{
    uint32_t value = 0;
    int result;
    if (way == BY_MESSAGE)
        result = sys_in(size, port, &value);
    else if (way == BY_DIRECT_CALL)
        result = hal_call(of_size(HAL_IN_BYTE, size), port, &value, NULL);
    else
        return execute_in(size, port);
    if (result == 0)
        return value;
    port_failures++;
    return ~0u;
}

static void out(uint32_t size, uint16_t port, uint32_t value)
{
    int result = 0;
    if (way == BY_MESSAGE)
        result = sys_out(size, port, value);
    else if (way == BY_DIRECT_CALL)
        result = hal_call(of_size(HAL_OUT_BYTE, size), port, &value, NULL);
    else
        execute_out(size, port, value);
    port_failures += result != 0;
}

static void string(uint32_t direction, uint32_t size, uint16_t port, void *address, uint32_t count)
{
    int result = 0;
    if (way == BY_MESSAGE)
        result = sys_sdevio(direction, size, port, address, count);
    else if (way == BY_DIRECT_CALL)
        result = hal_call(of_size(direction == IO_IN ? HAL_IN_BYTES : HAL_OUT_BYTES, size), port, &count,
                          address);
    else
        execute_string(direction, size, port, address, count);
    if (result != 0) {
        port_failures++;
        if (direction == IO_IN)
            memset(address, 0xff, count * size);
    }
}

uint8_t in_byte(uint16_t port)
{
    return in(1, port);
}

uint16_t in_word(uint16_t port)
{
    return in(2, port);
}

uint32_t in_double(uint16_t port)
{
    return in(4, port);
}

void out_byte(uint16_t port, uint8_t value)
{
    out(1, port, value);
}

void out_word(uint16_t port, uint16_t value)
{
    out(2, port, value);
}

void out_double(uint16_t port, uint32_t value)
{
    out(4, port, value);
}

void in_bytes(uint16_t port, void *to, uint32_t count)
{
    string(IO_IN, 1, port, to, count);
}

void in_words(uint16_t port, void *to, uint32_t count)
{
    string(IO_IN, 2, port, to, count);
}

void in_doubles(uint16_t port, void *to, uint32_t count)
{
    string(IO_IN, 4, port, to, count);
}

void out_bytes(uint16_t port, const void *from, uint32_t count)
{
    string(IO_OUT, 1, port, (void *)from, count);
}

void out_words(uint16_t port, const void *from, uint32_t count)
{
    string(IO_OUT, 2, port, (void *)from, count);
}

void out_doubles(uint16_t port, const void *from, uint32_t count)
{
    string(IO_OUT, 4, port, (void *)from, count);
}

int granted_copy(endpoint_t granter, uint32_t grant, uint32_t offset, void *address, uint32_t bytes,
                 uint32_t direction)
{
    struct safe_copy copy = {granter, grant, offset, (uint32_t)address, bytes, direction};
    uint32_t value = 0;
    if (way == BY_MESSAGE)
        return sys_safecopy(granter, grant, offset, address, bytes, direction);
    return hal_call(HAL_COPY, 0, &value, &copy);
}

void interrupt_enable(uint32_t line)
{
    uint32_t value = 0;
    if (way == BY_MESSAGE)
        sys_irqctl(IRQ_ENABLE, line);
    else
        hal_call(HAL_IRQ_ENABLE, line, &value, NULL);
}

void port_vector(struct port_access *accesses, uint32_t count)
{
    if (way == BY_MESSAGE) {
        port_failures += sys_vdevio(accesses, count) != 0;
    } else if (way == BY_DIRECT_CALL) {
        port_failures += hal_call(HAL_VECTOR_ACCESS, 0, &count, accesses) != 0;
    } else {
        for (struct port_access *a = accesses; a < accesses + count; a++)
            if (a->direction == IO_IN)
                a->value = execute_in(a->size, a->port);
            else
                execute_out(a->size, a->port, a->value);
    }
}
