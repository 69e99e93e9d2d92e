/* Programs: their files and the arguments that they start with. */

#include <string.h>
#include <tern/errno.h>
#include <tern/pm.h>
#include <tern/program.h>

struct elf_header {
    uint8_t identification[16];
    uint16_t type, machine;
    uint32_t version, entry, headers, sections, flags;
    uint16_t header_bytes, entry_bytes, entries, section_bytes, sections_count, names;
};

struct elf_segment {
    uint32_t type, offset, address, physical, file_bytes, bytes, flags, alignment;
};

#define ET_EXEC 2
#define EM_386 3
#define PT_LOAD 1

static int valid_header(const struct elf_header *header, uint32_t head_bytes)
{
    /* 32 bits, little-endian, version 1 */
    static const uint8_t identification[] = {0x7f, 'E', 'L', 'F', 1, 1, 1};
    return memcmp(header->identification, identification, sizeof identification) == 0 &&
           header->type == ET_EXEC && header->machine == EM_386 &&
           header->entry_bytes == sizeof(struct elf_segment) && header->headers <= head_bytes &&
           header->entries <= (head_bytes - header->headers) / sizeof(struct elf_segment);
}

static int valid_segment(const struct elf_segment *segment, uint32_t file_bytes)
{
    return segment->offset <= file_bytes && segment->file_bytes <= file_bytes - segment->offset &&
           segment->file_bytes <= segment->bytes && segment->address >= IMAGE_BASE &&
           segment->address < MAPS_BASE && segment->bytes <= MAPS_BASE - segment->address;
}

static void add(struct program *program, const struct elf_segment *segment)
{
    uint32_t first = segment->address & ~0xfffu;
    uint32_t end = (segment->address + segment->bytes + 0xfff) & ~0xfffu;
    if (program->segments == 0 || first < program->first)
        program->first = first;
    if (end > program->end)
        program->end = end;
    program->segment[program->segments++] = (struct segment){segment->offset, segment->file_bytes,
                                                             segment->address, segment->bytes};
}

int program_read(const void *head, uint32_t head_bytes, uint32_t file_bytes, struct program *program)
{
    struct elf_header header;
    if (head_bytes > file_bytes)
        head_bytes = file_bytes;
    if (head_bytes < sizeof header)
        return -ENOEXEC;
    memcpy(&header, head, sizeof header);
    if (!valid_header(&header, head_bytes))
        return -ENOEXEC;
    memset(program, 0, sizeof *program);
    program->entry = header.entry;
    for (uint32_t i = 0; i < header.entries; i++) {
        struct elf_segment segment;
        memcpy(&segment, (const char *)head + header.headers + i * sizeof segment, sizeof segment);
        if (segment.type != PT_LOAD || segment.bytes == 0)
            continue;
        if (program->segments == PROGRAM_SEGMENTS || !valid_segment(&segment, file_bytes))
            return -ENOEXEC;
        add(program, &segment);
    }
    if (program->entry < program->first || program->entry >= program->end)
        return -ENOEXEC;
    return 0;
}

static uint32_t count(char *const strings[])
{
    uint32_t n = 0;
    while (strings && strings[n])
        n++;
    return n;
}

/* Adds the strings, and pointers to them with a final 0 at `pointers`. Returns how much of the block is in
   use then, or 0 if there is no room. */
static uint32_t add_strings(char *block, uint32_t bytes, uint32_t used, uint32_t *pointers,
                            char *const strings[], uint32_t n, uint32_t base)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t length = strlen(strings[i]) + 1;
        if (length > bytes - used)
            return 0;
        memcpy(block + used, strings[i], length);
        pointers[i] = base + used;
        used += length;
    }
    pointers[n] = 0;
    return used;
}

int program_arguments(void *block, uint32_t bytes, char *const argv[], char *const envp[], uint32_t base)
{
    uint32_t *words = block;
    uint32_t arguments = count(argv), variables = count(envp);
    uint32_t used = (arguments + variables + 3) * 4;
    if (arguments > bytes || variables > bytes || used > bytes)
        return -E2BIG;
    words[0] = arguments;
    used = add_strings(block, bytes, used, words + 1, argv, arguments, base);
    if (used)
        used = add_strings(block, bytes, used, words + arguments + 2, envp, variables, base);
    return used ? (int)used : -E2BIG;
}
