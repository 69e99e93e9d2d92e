/* expr EXPRESSION: the value of an expression, of which each operand and operator is an argument: | & = != <
   <= > >= + - * / % : ( ). The status is 1 if the value is empty or 0. */

#include <limits.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>

#define LEVELS 6 /* of binary operators; the last binds most */

static char **argument;

static const char *const operators[LEVELS][7] = {
    {"|"}, {"&"}, {"=", "!=", "<", "<=", ">", ">="}, {"+", "-"}, {"*", "/", "%"}, {":"}};

static char *expression(int level);

static void __attribute__((noreturn)) fail(const char *what)
{
    fprintf(stderr, "expr: %s\n", what);
    exit(2);
}

static int is_number(const char *text, long long *value)
{
    char *end;
    *value = strtoll(text, &end, 10);
    return *text && *end == 0 && *text != ' ' && *text != '+';
}

static int is_true(const char *text)
{
    long long value;
    return *text && !(is_number(text, &value) && value == 0);
}

static char *string_of(long long value)
{
    char *text = need(NULL, 24);
    snprintf(text, 24, "%lld", value);
    return text;
}

static char *match(const char *text, const char *pattern)
{
    regex_t regex;
    regmatch_t groups[2];
    if (regcomp(&regex, pattern, 0))
        fail("no regular expression");
    int matched = regexec(&regex, text, 2, groups, 0) == 0 && groups[0].rm_so == 0;
    if (!regex.re_nsub)
        return string_of(matched ? groups[0].rm_eo : 0);
    return matched && groups[1].rm_so >= 0
               ? strndup(text + groups[1].rm_so, groups[1].rm_eo - groups[1].rm_so)
               : strdup("");
}

static char *calculate(const char *left, char operator, const char *right)
{
    long long a, b, result = 0;
    if (!is_number(left, &a) || !is_number(right, &b))
        fail("an operand is no number");
    if ((operator == '/' || operator == '%') && (b == 0 || (a == LLONG_MIN && b == -1)))
        fail(b ? "the result is too large" : "division by zero");
    int overflow = 0;
    if (operator == '+' || operator == '-') {
        result = (long long)((unsigned long long)a
                             + (operator == '+' ? (unsigned long long)b : 0 - (unsigned long long)b));
        overflow = (operator == '+') == (b >= 0) ? result < a : result > a;
    } else if (operator == '*') {
        result = (long long)((unsigned long long)a * (unsigned long long)b);
        overflow = a && (result / a != b || (a == -1 && b == LLONG_MIN));
    }
    if (overflow)
        fail("the result is too large");
    return string_of(operator == '/' ? a / b : operator == '%' ? a % b : result);
}

static char *compare(const char *left, const char *operator, const char *right)
{
    long long a, b;
    int order = strcmp(left, right);
    if (is_number(left, &a) && is_number(right, &b))
        order = (a > b) - (a < b);
    int equal = operator[0] == '=' || operator[1] == '=';
    int result = operator[0] == '!' ? order != 0 : order == 0 ? equal :
                 operator[0] == '<' ? order < 0 : operator[0] == '>' && order > 0;
    return string_of(result);
}

static char *apply(int level, char *left, const char *operator, char *right)
{
    switch (level) {
    case 0: return is_true(left) ? left : is_true(right) ? right : "0";
    case 1: return is_true(left) && is_true(right) ? left : "0";
    case 2: return compare(left, operator, right);
    case 5: return match(left, right);
    default: return calculate(left, *operator, right);
    }
}

static char *operand(void)
{
    if (!*argument)
        fail("an operand is missing");
    if (strcmp(*argument, "("))
        return *argument++;
    argument++;
    char *value = expression(0);
    if (!*argument || strcmp(*argument++, ")"))
        fail(") is missing");
    return value;
}

static char *expression(int level)
{
    if (level == LEVELS)
        return operand();
    char *value = expression(level + 1);
    for (int i = 0; *argument && operators[level][i];) {
        if (strcmp(*argument, operators[level][i])) {
            i++;
            continue;
        }
        const char *operator = *argument++;
        value = apply(level, value, operator, expression(level + 1));
        i = 0;
    }
    return value;
}

int main(int argc, char **argv)
{
    argument = argv + 1;
    if (argc > 1 && strcmp(*argument, "--") == 0)
        argument++;
    if (!*argument)
        return usage("expr EXPRESSION");
    char *value = expression(0);
    if (*argument)
        fail("an operator is missing");
    puts(value);
    return !is_true(value);
}
