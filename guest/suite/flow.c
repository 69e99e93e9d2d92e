/*
 * Calls and jumps.
 */
#include "suite.h"

/* Fibonacci's numbers as their definition has them: two calls in each call. Not inlined into itself. */
__attribute__((noinline, noclone, optimize("no-optimize-sibling-calls"))) static uint32_t
fibonacci(uint32_t n)
{
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

/* Recursive calls: 13,529 and 21,891 of them by turns, up to 20 deep. */
uint32_t flow_call(uint32_t count, const char *path)
{
    (void)path;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum = mix(sum, fibonacci(19 + (i & 1)));
    return sum;
}

/* Keeps the compiler from replacing a conditional jump by a conditional move. */
#define STAY() __asm__ volatile("")

/* Conditional jumps, some of which are always or seldom taken and two as often as not. */
uint32_t flow_conditional(uint32_t count, const char *path)
{
    (void)path;
    uint32_t x = 1, sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        if ((i & 31) == 0) {
            STAY();
            x = next_random(x);
        }
        if (x >> 31) {
            STAY();
            sum += 1013;
        }
        if (i & 1) {
            STAY();
            sum ^= 77;
        } else {
            STAY();
            sum -= 3;
        }
        if (sum > 0xfffff000) {
            STAY();
            sum = 5;
        }
        if ((int32_t)(x << 5) < 0) {
            STAY();
            sum += x;
        }
    }
    return sum;
}

/* Computed jumps: a machine with 12 operations interprets a program of 32. */
uint32_t flow_jumptable(uint32_t count, const char *path)
{
    (void)path;
    uint8_t program[32];
    uint32_t x = 7;
    for (size_t i = 0; i < sizeof program; i++) {
        x = next_random(x);
        program[i] = (x >> 16) % 12;
    }
    uint32_t a = 1, b = 2;
    for (uint32_t i = 0; i < count; i++) {
        for (size_t at = 0; at < sizeof program; at++) {
            switch (program[at]) {
            case 0: a += b; break;
            case 1: b -= a; break;
            case 2: a ^= b << 3; break;
            case 3: b = b >> 1 | b << 31; break;
            case 4: a *= 5; break;
            case 5: b ^= i; break;
            case 6: a = ~a; break;
            case 7: b += 0x9e3779b9; break;
            case 8: a -= i; break;
            case 9: b |= 1; break;
            case 10: a &= 0x7fffffff; break;
            case 11: b = -b; break;
            }
            STAY();
        }
    }
    return mix(a, b);
}
