/* How programs' files are read and arguments built, in a program of the host: whatever the file holds, what
   program_read accepts lies within the file and within a program's part of memory. */

#include <stdio.h>
#include <string.h>
#include <tern/errno.h>
#include <tern/pm.h>
#include <tern/program.h>

#define FILE_BYTES 8192u

#define CHECK(condition) \
    ((condition) ? 0 : (printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition), failures++))

static int failures;

/* A header and two segments: code at 400000h, data with zeros behind it at 402ff0h. */
static const uint32_t right[] = {
    0x464c457f, 0x00010101, 0, 0, 0x00030002, 1, 0x00400010, 52, 0, 0, 0x00200034, 0x00000002, 0,
    1, 0x1000, 0x00400000, 0, 0x500, 0x500, 5, 0x1000,
    1, 0x1500, 0x00402ff0, 0, 0x20, 0x2000, 6, 0x1000};

static void check_bounds(const struct program *program)
{
    CHECK(program->segments <= PROGRAM_SEGMENTS && program->first >= IMAGE_BASE && program->end <= MAPS_BASE);
    CHECK(program->first % 4096 == 0 && program->end % 4096 == 0 && program->first < program->end);
    CHECK(program->entry >= program->first && program->entry < program->end);
    for (uint32_t i = 0; i < program->segments; i++) {
        const struct segment *segment = &program->segment[i];
        CHECK((uint64_t)segment->offset + segment->file_bytes <= FILE_BYTES);
        CHECK(segment->address >= program->first && segment->file_bytes <= segment->bytes);
        CHECK((uint64_t)segment->address + segment->bytes <= program->end);
    }
}

static void check_right(void)
{
    struct program program;
    CHECK(program_read(right, sizeof right, FILE_BYTES, &program) == 0);
    check_bounds(&program);
    CHECK(program.entry == 0x400010 && program.first == 0x400000 && program.end == 0x405000);
    CHECK(program.segments == 2 && program.segment[1].file_bytes == 0x20
          && program.segment[1].bytes == 0x2000);
    for (uint32_t bytes = 0; bytes < sizeof right; bytes++)
        CHECK(program_read(right, bytes, FILE_BYTES, &program) == -ENOEXEC);
    CHECK(program_read(right, sizeof right, 0x1510, &program) == -ENOEXEC);
}

static void check_noise(void)
{
    static const uint32_t values[] = {0, 1, 0x7fffffff, 0xffffffff, 0x1000, 0x400000, 0x3ffff000, 0xc0000000,
                                      8192};
    uint32_t seed = 1, accepted = 0;
    for (int round = 0; round < 300000; round++) {
        uint32_t words[sizeof right / 4];
        struct program program;
        memcpy(words, right, sizeof words);
        for (int change = 0; change < 2; change++) {
            seed = seed * 1664525 + 1013904223;
            uint32_t value = values[(seed >> 8) % (sizeof values / 4)];
            words[(seed >> 16) % (sizeof words / 4)] = seed >> 31 ? value : value + (seed >> 4 & 0xff) - 128;
        }
        if (program_read(words, sizeof words, FILE_BYTES, &program) == 0) {
            check_bounds(&program);
            accepted++;
        }
    }
    CHECK(accepted > 1000 && accepted < 299000);
}

static void check_arguments(void)
{
    char *const argv[] = {"a", "bc", NULL}, *const envp[] = {"D=e", NULL};
    uint32_t block[32];
    int bytes = program_arguments(block, sizeof block, argv, envp, 0x1000);
    CHECK(bytes == 6 * 4 + 2 + 3 + 4);
    CHECK(block[0] == 2 && block[3] == 0 && block[5] == 0);
    CHECK(strcmp((char *)block + block[1] - 0x1000, "a") == 0);
    CHECK(strcmp((char *)block + block[2] - 0x1000, "bc") == 0);
    CHECK(strcmp((char *)block + block[4] - 0x1000, "D=e") == 0);
    for (int room = 0; room < bytes; room++)
        CHECK(program_arguments(block, room, argv, envp, 0) == -E2BIG);
    CHECK(program_arguments(block, bytes, argv, envp, 0) == bytes);
    CHECK(program_arguments(block, sizeof block, NULL, NULL, 0) == 12);
}

int main(void)
{
    check_right();
    check_noise();
    check_arguments();
    return failures ? 1 : 0;
}
