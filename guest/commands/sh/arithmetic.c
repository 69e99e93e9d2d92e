/* Arithmetic: C's integer expressions with its priorities. */

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sh.h"

#define DEPTH 64

static const char *at;
static int depth, failed;

static long expression(int priority);

static void skip(void)
{
    while (isspace((unsigned char)*at))
        at++;
}

static long assign(const char *name, long value)
{
    char text[24];
    snprintf(text, sizeof text, "%ld", value);
    variable_set(name, text, 0);
    return value;
}

static long operand(void)
{
    char name[64];
    size_t length = 0;
    skip();
    if (*at == '-')
        return at++, -operand();
    if (*at == '+')
        return at++, operand();
    if (*at == '!')
        return at++, !operand();
    if (*at == '~')
        return at++, ~operand();
    if (*at == '(') {
        at++;
        long value = expression(0);
        skip();
        if (*at == ')')
            at++;
        else
            failed = 1;
        return value;
    }
    if (isdigit((unsigned char)*at)) {
        char *end;
        long value = strtol(at, &end, 0);
        at = end;
        return value;
    }
    while ((isalnum((unsigned char)*at) || *at == '_') && length + 1 < sizeof name)
        name[length++] = *at++;
    name[length] = 0;
    if (!length) {
        failed = 1;
        return 0;
    }
    skip();
    if (*at == '=' && at[1] != '=')
        return at++, assign(name, expression(0));
    const char *value = variable(name);
    return value ? strtol(value, NULL, 0) : 0;
}

static const struct {
    const char *text;
    int priority;
} operators[] = {{"||", 1}, {"&&", 2}, {"==", 6}, {"!=", 6}, {"<=", 7}, {">=", 7}, {"<<", 8}, {">>", 8},
                 {"|", 3}, {"^", 4}, {"&", 5}, {"<", 7}, {">", 7}, {"+", 9}, {"-", 9}, {"*", 10}, {"/", 10},
                 {"%", 10}};

static long apply(const char *o, long a, long b)
{
    switch (o[0] + (o[1] ? 256 * o[1] : 0)) {
    case '|' + 256 * '|': return a || b;
    case '&' + 256 * '&': return a && b;
    case '=' + 256 * '=': return a == b;
    case '!' + 256 * '=': return a != b;
    case '<' + 256 * '=': return a <= b;
    case '>' + 256 * '=': return a >= b;
    case '<' + 256 * '<': return (long)((unsigned long)a << (b & 31));
    case '>' + 256 * '>': return a >> (b & 31);
    case '|': return a | b;
    case '^': return a ^ b;
    case '&': return a & b;
    case '<': return a < b;
    case '>': return a > b;
    case '+': return (long)((unsigned long)a + (unsigned long)b);
    case '-': return (long)((unsigned long)a - (unsigned long)b);
    case '*': return (long)((unsigned long)a * (unsigned long)b);
    }
    if (b == 0) {
        failed = 1;
        return 0;
    }
    if (b == -1) /* the one quotient that does not fit would trap */
        return *o == '/' ? (long)-(unsigned long)a : 0;
    return *o == '/' ? a / b : a % b;
}

static long expression(int priority)
{
    if (++depth > DEPTH) {
        failed = 1;
        depth--;
        return 0;
    }
    long value = operand();
    for (;;) {
        size_t i = 0;
        skip();
        while (i < sizeof operators / sizeof *operators
               && strncmp(at, operators[i].text, strlen(operators[i].text)))
            i++;
        if (i == sizeof operators / sizeof *operators || operators[i].priority <= priority)
            break;
        at += strlen(operators[i].text);
        value = apply(operators[i].text, value, expression(operators[i].priority));
    }
    skip();
    if (priority == 0 && *at == '?') {
        at++;
        long yes = expression(0);
        skip();
        if (*at == ':')
            at++;
        else
            failed = 1;
        long no = expression(0);
        value = value ? yes : no;
    }
    depth--;
    return value;
}

long evaluate(const char *text)
{
    at = text;
    depth = failed = 0;
    long value = *text ? expression(0) : 0;
    skip();
    if (failed || *at) {
        complain(text, "bad arithmetic");
        last_status = 1;
        return 0;
    }
    return value;
}
