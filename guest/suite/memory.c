/*
 * Memory: 64 MiB, which no cache and no TLB holds. "Scattered small blocks" are words, each in a line of 64
 * bytes of its own.
 */
#include <sys/mman.h>

#include "suite.h"

#define LINES (1u << 20)
#define WORDS_OF_A_LINE 16
#define WORDS ((size_t)LINES * WORDS_OF_A_LINE)
#define BYTES (WORDS * sizeof(uint32_t))

/* BYTES of memory in which the first word of each line has been written: no page is missing any more. */
static volatile uint32_t *prepared(void)
{
    volatile uint32_t *words = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED)
        fail("mmap");
    /* Pages of 4 KiB everywhere. A kernel without larger ones may refuse: it has no others, and Tern never
       has. */
#ifdef MADV_NOHUGEPAGE
    madvise((void *)words, BYTES, MADV_NOHUGEPAGE);
#endif
    for (uint32_t line = 0; line < LINES; line++)
        words[line * WORDS_OF_A_LINE] = line;
    return words;
}

/* The first word of the line that the high bits of X choose. */
static volatile uint32_t *at_random(volatile uint32_t *words, uint32_t x)
{
    return &words[(x >> 12) * WORDS_OF_A_LINE];
}

/* COUNT words. */
uint32_t memory_load_random(uint32_t count, const char *path)
{
    (void)path;
    volatile uint32_t *words = prepared();
    uint32_t x = 1, sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        x = next_random(x);
        sum = mix(sum, *at_random(words, x));
    }
    return sum;
}

uint32_t memory_store_random(uint32_t count, const char *path)
{
    (void)path;
    volatile uint32_t *words = prepared();
    uint32_t x = 1, sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        x = next_random(x);
        *at_random(words, x) = i;
    }
    /* A line in 4096, which count 0 reads as well. */
    for (uint32_t line = 0; line < LINES; line += 4096)
        sum = mix(sum, words[line * WORDS_OF_A_LINE]);
    return sum;
}

/* All words, COUNT times. */
uint32_t memory_load_sequential(uint32_t count, const char *path)
{
    (void)path;
    volatile uint32_t *words = prepared();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        for (size_t at = 0; at < WORDS; at++)
            sum += words[at];
    return sum;
}

uint32_t memory_store_sequential(uint32_t count, const char *path)
{
    (void)path;
    volatile uint32_t *words = prepared();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        for (size_t at = 0; at < WORDS; at++)
            words[at] = i + at;
    for (uint32_t line = 0; line < LINES; line += 4096)
        sum = mix(sum, words[line * WORDS_OF_A_LINE + 5]);
    return sum;
}

/* The lower half to the upper one, COUNT times, by REP MOVSD. */
uint32_t memory_copy(uint32_t count, const char *path)
{
    (void)path;
    volatile uint32_t *words = prepared();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        volatile uint32_t *from = words, *to = words + WORDS / 2;
        size_t left = WORDS / 2;
        words[i] = i;
        __asm__ volatile("rep movsl" : "+S"(from), "+D"(to), "+c"(left) : : "memory");
    }
    for (uint32_t line = 0; line < LINES; line += 4096)
        sum = mix(sum, words[line * WORDS_OF_A_LINE]);
    return mix(sum, words[WORDS / 2 + count / 2]);
}
