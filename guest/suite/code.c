/*
 * Code that is made while it runs, as just-in-time compilers do.
 */
#include <string.h>
#include <sys/mman.h>

#include "suite.h"

typedef uint32_t function(void);

#define SLOT 16
#define SLOTS 4096

static uint8_t *room(void)
{
    int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    uint8_t *room = mmap(NULL, SLOT * SLOTS, all, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        fail("mmap");
    memset(room, 0xcc, SLOT * SLOTS);
    return room;
}

/* MOV EAX, value; RET */
static void write_function(uint8_t *at, uint32_t value)
{
    at[0] = 0xb8;
    memcpy(at + 1, &value, sizeof value);
    at[5] = 0xc3;
}

/* Writes a new function, each in the next 16 bytes of 64 KiB, and calls it. */
uint32_t code_new(uint32_t count, const char *path)
{
    (void)path;
    uint8_t *code = room();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *at = code + i % SLOTS * SLOT;
        write_function(at, i);
        sum = mix(sum, ((function *)at)());
    }
    return sum;
}

/* Changes the constant in one function, and calls it. */
uint32_t code_patched(uint32_t count, const char *path)
{
    (void)path;
    uint8_t *code = room();
    uint32_t sum = 0;
    write_function(code, 0);
    for (uint32_t i = 0; i < count; i++) {
        *(volatile uint32_t *)(code + 1) = i;
        sum = mix(sum, ((function *)code)());
    }
    return sum;
}
