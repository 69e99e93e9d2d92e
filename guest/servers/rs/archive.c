/* The boot archive: cpio, "new ASCII format" (newc): a header of 110 characters, the name with a final 0, the
   contents; both end at multiples of 4. Numbers are 8 hexadecimal digits. */

#include <string.h>
#include "rs.h"

#define HEADER_BYTES 110
#define AT_SIZE 54  /* the 7th number behind the 6 characters of the magic number */
#define AT_NAME 94  /* the 12th */

static const uint8_t *archive;
static uint32_t archive_bytes;

int archive_open(const struct boot_info *boot)
{
    uint32_t offset = boot->archive & 0xfff, address = 0;
    uint32_t bytes = (offset + boot->archive_bytes + 0xfff) & ~0xfffu;
    if (boot->archive_bytes == 0)
        return -ENOENT;
    int result = sys_mapphysical(SELF, &address, bytes, 0, boot->archive - offset);
    if (result)
        return result;
    archive = (const uint8_t *)address + offset;
    archive_bytes = boot->archive_bytes;
    return 0;
}

/* Returns whether all digits are such. */
static int number(const uint8_t *digits, uint32_t *value)
{
    *value = 0;
    for (int i = 0; i < 8; i++) {
        uint8_t c = digits[i] | 0x20;
        if (digits[i] >= '0' && digits[i] <= '9')
            *value = *value << 4 | (uint32_t)(digits[i] - '0');
        else if (c >= 'a' && c <= 'f')
            *value = *value << 4 | (uint32_t)(c - 'a' + 10);
        else
            return 0;
    }
    return 1;
}

/* Names in archives may begin with "./" or without a slash. */
static const char *without_root(const char *name)
{
    if (name[0] == '.' && name[1] == '/')
        name++;
    while (*name == '/')
        name++;
    return name;
}

const uint8_t *archive_find(const char *path, uint32_t *bytes)
{
    uint32_t at = 0;
    path = without_root(path);
    while (archive_bytes - at >= HEADER_BYTES) {
        const uint8_t *header = archive + at;
        uint32_t size, name_bytes, left = archive_bytes - at;
        if (memcmp(header, "070701", 6) || !number(header + AT_SIZE, &size) ||
            !number(header + AT_NAME, &name_bytes) || name_bytes == 0 || name_bytes > left - HEADER_BYTES)
            return NULL;
        const char *name = (const char *)header + HEADER_BYTES;
        uint32_t contents = (HEADER_BYTES + name_bytes + 3) & ~3u;
        if (name[name_bytes - 1] || contents > left || size > left - contents)
            return NULL;
        if (strcmp(without_root(name), path) == 0) {
            *bytes = size;
            return header + contents;
        }
        uint32_t next = contents + ((size + 3) & ~3u);
        if (next > left)
            return NULL;
        at += next;
    }
    return NULL;
}
