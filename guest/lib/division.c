/* 64-bit division and shifts, which compilers for the 80386 call by these names. */

#include <stdint.h>

uint64_t __udivmoddi4(uint64_t dividend, uint64_t divisor, uint64_t *remainder);
uint64_t __udivdi3(uint64_t dividend, uint64_t divisor);
uint64_t __umoddi3(uint64_t dividend, uint64_t divisor);
int64_t __divdi3(int64_t dividend, int64_t divisor);
int64_t __moddi3(int64_t dividend, int64_t divisor);
int64_t __divmoddi4(int64_t dividend, int64_t divisor, int64_t *remainder);
int64_t __ashldi3(int64_t value, int count);
int64_t __ashrdi3(int64_t value, int count);
uint64_t __lshrdi3(uint64_t value, int count);

union halves {
    uint64_t whole;
    struct {
        uint32_t low, high;
    } half;
};

/* high:low / divisor, where high < divisor: DIV. */
static uint32_t divide(uint32_t high, uint32_t low, uint32_t divisor, uint32_t *remainder)
{
    uint32_t quotient;

    __asm__("divl %4" : "=a"(quotient), "=d"(*remainder) : "a"(low), "d"(high), "r"(divisor) : "cc");
    return quotient;
}

uint64_t __udivmoddi4(uint64_t dividend, uint64_t divisor, uint64_t *remainder)
{
    union halves n, d, quotient, rest;
    uint32_t upper, scratch;
    int shift;

    n.whole = dividend;
    d.whole = divisor;
    rest.whole = 0;
    if (d.half.high == 0) {
        /* Two digits of base 2^32 by one digit. A divisor of 0 raises #DE, as it does in 32 bits. */
        quotient.half.high = divide(0, n.half.high, d.half.low, &rest.half.low);
        quotient.half.low = divide(rest.half.low, n.half.low, d.half.low, &rest.half.low);
    } else {
        /* The quotient has one digit. Dividing half the dividend by the upper 32 significant bits of the
           divisor gives a digit that is at most one too large (Warren, Hacker's Delight, 9-5). */
        for (shift = 1; shift < 32 && d.half.high >> shift; shift++)
            ;
        upper = shift == 32 ? d.half.high : d.half.high << (32 - shift) | d.half.low >> shift;
        n.whole >>= 1;
        quotient.whole = divide(n.half.high, n.half.low, upper, &scratch) >> (shift - 1);
        if (quotient.half.low)
            quotient.half.low--;
        rest.whole = dividend - quotient.half.low * divisor;
        if (rest.whole >= divisor) {
            rest.whole -= divisor;
            quotient.half.low++;
        }
    }
    if (remainder)
        *remainder = rest.whole;
    return quotient.whole;
}

uint64_t __udivdi3(uint64_t dividend, uint64_t divisor)
{
    return __udivmoddi4(dividend, divisor, 0);
}

uint64_t __umoddi3(uint64_t dividend, uint64_t divisor)
{
    uint64_t remainder;

    __udivmoddi4(dividend, divisor, &remainder);
    return remainder;
}

static uint64_t magnitude(int64_t n)
{
    return n < 0 ? -(uint64_t)n : (uint64_t)n;
}

int64_t __divmoddi4(int64_t dividend, int64_t divisor, int64_t *remainder)
{
    uint64_t rest, quotient = __udivmoddi4(magnitude(dividend), magnitude(divisor), &rest);

    *remainder = dividend < 0 ? -rest : rest;
    return (dividend < 0) != (divisor < 0) ? -quotient : quotient;
}

int64_t __divdi3(int64_t dividend, int64_t divisor)
{
    int64_t remainder;

    return __divmoddi4(dividend, divisor, &remainder);
}

int64_t __moddi3(int64_t dividend, int64_t divisor)
{
    int64_t remainder;

    __divmoddi4(dividend, divisor, &remainder);
    return remainder;
}

int64_t __ashldi3(int64_t value, int count)
{
    union halves n;

    n.whole = value;
    if (count >= 32) {
        n.half.high = n.half.low << (count - 32);
        n.half.low = 0;
    } else if (count) {
        n.half.high = n.half.high << count | n.half.low >> (32 - count);
        n.half.low <<= count;
    }
    return n.whole;
}

uint64_t __lshrdi3(uint64_t value, int count)
{
    union halves n;

    n.whole = value;
    if (count >= 32) {
        n.half.low = n.half.high >> (count - 32);
        n.half.high = 0;
    } else if (count) {
        n.half.low = n.half.low >> count | n.half.high << (32 - count);
        n.half.high >>= count;
    }
    return n.whole;
}

int64_t __ashrdi3(int64_t value, int count)
{
    union halves n;
    uint32_t sign = value < 0 ? 0xffffffffu : 0;

    n.whole = __lshrdi3(value, count);
    if (count >= 32) {
        n.half.high = sign;
        n.half.low |= count > 32 ? sign << (64 - count) : 0;
    } else if (count) {
        n.half.high |= sign << (32 - count);
    }
    return n.whole;
}
