/* Processes of programs. */

#include <string.h>
#include <tern/pm.h>
#include <tern/program.h>
#include "rs.h"

#define STACK 0x40000u
#define ARGUMENT_BLOCK 2048u

static int load(endpoint_t process, const uint8_t *image, const struct program *program)
{
    uint32_t address = program->first;
    int result = sys_map(process, &address, program->end - program->first, MAP_WRITE, NULL);
    for (uint32_t i = 0; i < program->segments && result == 0; i++) {
        const struct segment *segment = &program->segment[i];
        if (segment->file_bytes)
            result = sys_copy(SELF, (uint32_t)(image + segment->offset), process, segment->address,
                              segment->file_bytes);
    }
    return result;
}

/* Makes the stack with the arguments at its top. */
static int make_stack(endpoint_t process, char *const argv[], uint32_t *esp)
{
    static uint8_t block[ARGUMENT_BLOCK];
    uint32_t address = STACK_TOP - STACK;
    *esp = STACK_TOP - ARGUMENT_BLOCK;
    int used = program_arguments(block, sizeof block, argv, NULL, *esp);
    if (used < 0)
        return used;
    int result = sys_map(process, &address, STACK, MAP_WRITE, NULL);
    return result ? result : sys_copy(SELF, (uint32_t)block, process, *esp, used);
}

int program_start(const char *name, const uint8_t *image, uint32_t bytes, const struct rights *rights,
                  char *const argv[], endpoint_t *process)
{
    struct program program;
    uint32_t esp;
    int result =
        program_read(image, bytes < PROGRAM_HEAD_BYTES ? bytes : PROGRAM_HEAD_BYTES, bytes, &program);
    if (result)
        return result;
    result = sys_create(name, process);
    if (result)
        return result;
    result = sys_privctl(*process, rights);
    if (result == 0)
        result = load(*process, image, &program);
    if (result == 0)
        result = make_stack(*process, argv, &esp);
    if (result == 0)
        result = sys_start(*process, program.entry, esp);
    if (result) {
        sys_destroy(*process, NULL);
        *process = NONE;
    }
    return result;
}
