/* Programs: their files (ELF, System V ABI, chapters 4 and 5) and the arguments that they start with. */

#ifndef TERN_PROGRAM_H
#define TERN_PROGRAM_H

#include <stdint.h>

#define PROGRAM_SEGMENTS 8

struct segment {
    uint32_t offset, file_bytes; /* in the file */
    uint32_t address, bytes;     /* in memory; what the file does not have is zeros */
};

struct program {
    uint32_t entry;
    uint32_t first, end;         /* whole pages of all segments */
    uint32_t segments;
    struct segment segment[PROGRAM_SEGMENTS];
};

#define PROGRAM_HEAD_BYTES 4096  /* the program headers lie within so many bytes of the file's start */

/* Reads the headers of a program from the first bytes of its file. All of it is checked: the segments lie
   within the file and within the part of memory that programs have. Returns 0 or -ENOEXEC. */
int program_read(const void *head, uint32_t head_bytes, uint32_t file_bytes, struct program *program);

/* Builds an argument block (tern/pm.h, PM_EXEC) of at most so many bytes, with pointers that are right when
   it lies at `base`. Returns its length, or -E2BIG. */
int program_arguments(void *block, uint32_t bytes, char *const argv[], char *const envp[], uint32_t base);

#endif
