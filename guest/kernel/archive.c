/* The boot archive: cpio, format "newc" (a header of 110 characters, the name, the contents; each padded to
   4), and the programs in it, which are ELF files (System V ABI, "Object Files"). */

#include "kernel.h"

#define HEADER 110
#define DIGITS 8
#define FILE_SIZE 54               /* offsets of fields in the header */
#define NAME_SIZE 94

struct elf {
    uint8_t magic[16];
    uint16_t type, machine;
    uint32_t version, entry, program_headers, sections, flags;
    uint16_t size, program_header_size, program_header_count;
};

struct segment {
    uint32_t type, offset, address, physical, file_bytes, memory_bytes, flags, alignment;
};

#define LOADED 1                   /* PT_LOAD */
#define WRITES 2                   /* PF_W */
#define I386 3                     /* EM_386 */

static uint32_t hexadecimal(const uint8_t *digits)
{
    uint32_t value = 0;

    for (int i = 0; i < DIGITS; i++) {
        uint32_t c = digits[i];
        value = value << 4 | (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
}

const uint8_t *archive_find(const char *path, uint32_t *bytes)
{
    const uint8_t *archive = at_physical(boot.archive);
    uint32_t at = 0;

    while (boot.archive_bytes >= HEADER && at <= boot.archive_bytes - HEADER) {
        const uint8_t *header = archive + at;
        uint32_t name_bytes = hexadecimal(header + NAME_SIZE), contents;
        if (memcmp(header, "070701", 6) != 0)
            return NULL;
        *bytes = hexadecimal(header + FILE_SIZE);
        contents = (at + HEADER + name_bytes + 3) & ~3u;
        if (name_bytes > boot.archive_bytes || *bytes > boot.archive_bytes
            || contents > boot.archive_bytes - *bytes)
            return NULL;
        if (strlen(path) + 1 == name_bytes && memcmp(header + HEADER, path, name_bytes) == 0)
            return archive + contents;
        at = (contents + *bytes + 3) & ~3u;
    }
    return NULL;
}

static int load(struct process *process, const uint8_t *file, uint32_t bytes, const struct segment *segment)
{
    uint32_t first = segment->address & -PAGE, physical;
    uint32_t end = (segment->address + segment->memory_bytes + PAGE - 1) & -PAGE;
    int error;

    if (segment->offset > bytes || segment->file_bytes > bytes - segment->offset
        || segment->file_bytes > segment->memory_bytes || end <= first)
        return -ENOEXEC;
    /* Its contents are copied, so even a segment that is only read is mapped as writable. */
    error = space_map(process, &first, end - first, MAP_WRITE, &physical);
    return error != 0 ? error
                      : copy_out(process, segment->address, file + segment->offset, segment->file_bytes);
}

int program_load(struct process *process, const uint8_t *file, uint32_t bytes, uint32_t *eip)
{
    const struct elf *elf = (const struct elf *)file;
    int error = 0;

    if (bytes < sizeof *elf || memcmp(elf->magic, "\177ELF\1\1", 6) != 0 || elf->machine != I386
        || elf->program_headers > bytes
        || elf->program_header_count > (bytes - elf->program_headers) / sizeof(struct segment))
        return -ENOEXEC;
    *eip = elf->entry;
    for (int i = 0; i < elf->program_header_count && error == 0; i++) {
        const struct segment *segment = (const struct segment *)(file + elf->program_headers) + i;
        if (segment->type == LOADED)
            error = load(process, file, bytes, segment);
    }
    return error;
}
