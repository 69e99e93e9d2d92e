/* Numbers that others cannot guess: ports, sequence numbers, identifiers. */

#include <string.h>
#include "net.h"

static uint64_t key[2], counter;

static uint64_t rotate(uint64_t value, uint32_t by)
{
    return value << by | value >> (64 - by);
}

static void mix(uint64_t v[4], int rounds)
{
    while (rounds--) {
        v[0] += v[1], v[1] = rotate(v[1], 13) ^ v[0], v[0] = rotate(v[0], 32);
        v[2] += v[3], v[3] = rotate(v[3], 16) ^ v[2];
        v[0] += v[3], v[3] = rotate(v[3], 21) ^ v[0];
        v[2] += v[1], v[1] = rotate(v[1], 17) ^ v[2], v[2] = rotate(v[2], 32);
    }
}

/* SipHash-2-4 (Aumasson, Bernstein: "SipHash: a fast short-input PRF"). */
uint64_t keyed_hash(const void *data, uint32_t bytes)
{
    const uint8_t *from = data;
    while (!key[0])
        key[0] = entropy() * 0x9e3779b97f4a7c15ull, key[1] = rotate(entropy(), 31) ^ key[0];
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575ull, key[1] ^ 0x646f72616e646f6dull,
                     key[0] ^ 0x6c7967656e657261ull, key[1] ^ 0x7465646279746573ull};
    uint64_t last = (uint64_t)bytes << 56, word;
    for (; bytes >= 8; from += 8, bytes -= 8) {
        memcpy(&word, from, 8);
        v[3] ^= word;
        mix(v, 2);
        v[0] ^= word;
    }
    for (uint32_t i = 0; i < bytes; i++)
        last |= (uint64_t)from[i] << 8 * i;
    v[3] ^= last;
    mix(v, 2);
    v[0] ^= last;
    v[2] ^= 0xff;
    mix(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The time of events is mixed in, so that what was known once does not determine what follows. */
uint32_t random_number(void)
{
    uint64_t input[2] = {++counter, entropy()};
    return (uint32_t)keyed_hash(input, sizeof input);
}
