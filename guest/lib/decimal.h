/* Exact decimal digits of floating-point numbers. */

#ifndef DECIMAL_H
#define DECIMAL_H

#define DECIMAL_DIGITS 800  /* more than any finite double has: at most 767 */

/* Writes the digits of |x|, which is finite, without zeros at the ends. Returns how many; the value is
   0.DIGITS x 10^*point. */
int decimal_digits(double x, char *digits, int *point);

/* Rounds to `keep` digits, half to even. Returns how many there are then; a carry may change *point. */
int decimal_round(char *digits, int count, int keep, int *point);

#endif
