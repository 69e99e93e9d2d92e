/* Functions of floating-point numbers, as many as the programs need. */

#ifndef MATH_H
#define MATH_H

#define HUGE_VAL (1.0 / 0.0)
#define INFINITY (1.0f / 0.0f)
#define NAN (0.0f / 0.0f)
#define isnan(x) ((x) != (x))
#define isinf(x) (!isnan(x) && isnan((x) - (x)))

double fabs(double x);
double floor(double x);
double ceil(double x);
double fmod(double x, double y);
double sqrt(double x);
double ldexp(double x, int exponent);
double frexp(double x, int *exponent);
long double ldexpl(long double x, int exponent);

#endif
