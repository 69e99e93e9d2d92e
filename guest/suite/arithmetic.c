/*
 * Computing with integers.
 */
#include <string.h>

#include "suite.h"

/* Increments a variable in memory. */
uint32_t loop(uint32_t count, const char *path)
{
    (void)path;
    volatile uint32_t variable = 0;
    for (uint32_t i = 0; i < count; i++)
        variable++;
    return variable;
}

/* Additions, shifts, logic, multiplications and divisions of 32 and 64 bits. */
uint32_t arithmetic_int(uint32_t count, const char *path)
{
    (void)path;
    uint32_t a = 1, b = 2;
    uint64_t wide = 3;
    for (uint32_t i = 0; i < count; i++) {
        a = next_random(a);
        b += (a >> 7) ^ (a << 3);
        b -= i & 0xff;
        wide = wide * (b | 1) + a;
        b ^= (uint32_t)(wide >> 32);
        a += b / ((i & 0xffff) + 1) + (int32_t)b % 1009;
    }
    return mix(mix(a, b), (uint32_t)wide);
}

static uint32_t rotated(uint32_t word, int left)
{
    return word << left | word >> (32 - left);
}

/* One block of SHA-1 (FIPS 180-4, section 6.1.2). */
static void sha1_block(uint32_t state[5], const uint8_t *block)
{
    uint32_t w[80];
    for (int t = 0; t < 16; t++)
        w[t] =
            (uint32_t)block[4 * t] << 24 | block[4 * t + 1] << 16 | block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 80; t++)
        w[t] = rotated(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int t = 0; t < 80; t++) {
        uint32_t f, k;
        if (t < 20) {
            f = (b & c) ^ (~b & d);
            k = 0x5a827999;
        } else if (t < 40) {
            f = b ^ c ^ d;
            k = 0x6ed9eba1;
        } else if (t < 60) {
            f = (b & c) ^ (b & d) ^ (c & d);
            k = 0x8f1bbcdc;
        } else {
            f = b ^ c ^ d;
            k = 0xca62c1d6;
        }
        uint32_t sum = rotated(a, 5) + f + e + k + w[t];
        e = d;
        d = c;
        c = rotated(b, 30);
        b = a;
        a = sum;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

/* The SHA-1 of a page COUNT times, without the padding at a message's end. */
uint32_t hash(uint32_t count, const char *path)
{
    (void)path;
    static uint8_t page[4096];
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof page; i++) {
        x = next_random(x);
        page[i] = x >> 24;
    }
    uint32_t state[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    for (uint32_t i = 0; i < count; i++)
        for (size_t at = 0; at < sizeof page; at += 64)
            sha1_block(state, page + at);
    return mix(state[0], state[4]);
}
