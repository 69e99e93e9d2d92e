/*
 * Floating point. Only operations whose result IEEE 754 defines to the bit: the checksums are those of all
 * machines.
 */
#include <emmintrin.h>
#include <string.h>

#include "suite.h"

static uint32_t bits(double value)
{
    uint32_t half[2];
    memcpy(half, &value, sizeof half);
    return mix(half[0], half[1]);
}

/* What both of the next two compute: an orbit that stays between bounds. */
#define ORBIT(count, root)                                    \
    double x = 0.25, y = 0.5, sum = 0;                        \
    for (uint32_t i = 0; i < (count); i++) {                  \
        double next = 3.75 * x * (1 - x) + 0.001 * y;         \
        y = root(x * x + y * y) / (1 + x);                    \
        x = next > 0.9 ? next - 0.125 : next;                 \
        sum += x - y;                                         \
    }                                                         \
    return mix(bits(x), mix(bits(y), bits(sum)))

static inline double root_x87(double x)
{
    __asm__("fsqrt" : "+t"(x));
    return x;
}

static inline double root_sse(double x)
{
    __m128d value = _mm_set_sd(x);
    return _mm_cvtsd_f64(_mm_sqrt_sd(value, value));
}

/* Doubles on the x87, as programs for every IA-32 processor have them. */
uint32_t arithmetic_float(uint32_t count, const char *path)
{
    (void)path;
    ORBIT(count, root_x87);
}

/* The same in SSE2. */
__attribute__((target("fpmath=sse"))) uint32_t float_scalar(uint32_t count, const char *path)
{
    (void)path;
    ORBIT(count, root_sse);
}

/* Four singles at a time: points of the Mandelbrot set, 16 steps each. */
uint32_t float_packed(uint32_t count, const char *path)
{
    (void)path;
    const __m128 four = _mm_set1_ps(4), step = _mm_set1_ps(0.0000015f), two = _mm_set1_ps(2);
    __m128 real = _mm_set_ps(-1.5f, -1, -0.5f, 0), imaginary = _mm_set_ps(-0.75f, -0.25f, 0.25f, 0.75f);
    __m128 inside = _mm_setzero_ps(), area = _mm_setzero_ps();
    for (uint32_t i = 0; i < count; i++) {
        __m128 x = _mm_setzero_ps(), y = _mm_setzero_ps();
        real = _mm_add_ps(real, step);
        for (int steps = 0; steps < 16; steps++) {
            __m128 xx = _mm_mul_ps(x, x), yy = _mm_mul_ps(y, y);
            inside = _mm_cmple_ps(_mm_add_ps(xx, yy), four);
            y = _mm_add_ps(_mm_mul_ps(_mm_mul_ps(x, y), two), imaginary);
            x = _mm_add_ps(_mm_sub_ps(xx, yy), real);
            /* Points outside stay where they are: no overflow, which would be slow on real processors. */
            x = _mm_and_ps(x, inside);
            y = _mm_and_ps(y, inside);
        }
        area = _mm_add_ps(area, _mm_and_ps(inside, step));
    }
    float areas[4];
    _mm_storeu_ps(areas, area);
    return mix(mix(bits(areas[0]), bits(areas[1])), mix(bits(areas[2]), bits(areas[3])));
}
