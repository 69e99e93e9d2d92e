/* test (POSIX, Shell & Utilities, test). */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "sh.h"

int test_command(int argc, char **argv);

static int count;
static char **argument;
static int failed;

static int any(void);

static int file_test(char which, const char *path)
{
    struct stat status;
    if (which == 'r' || which == 'w' || which == 'x')
        return access(path, which == 'r' ? R_OK : which == 'w' ? W_OK : X_OK) == 0;
    if (which == 't')
        return isatty(atoi(path));
    if ((which == 'L' || which == 'h' ? lstat : stat)(path, &status))
        return 0;
    switch (which) {
    case 'e': return 1;
    case 'f': return S_ISREG(status.st_mode);
    case 'd': return S_ISDIR(status.st_mode);
    case 's': return status.st_size > 0;
    case 'b': return S_ISBLK(status.st_mode);
    case 'c': return S_ISCHR(status.st_mode);
    case 'p': return S_ISFIFO(status.st_mode);
    default: return S_ISLNK(status.st_mode);
    }
}

static int compare_times(const char *a, const char *b)
{
    struct stat x, y;
    if (stat(a, &x) || stat(b, &y))
        return 0;
    return (x.st_mtime > y.st_mtime) - (x.st_mtime < y.st_mtime);
}

/* Both sides of an operator; -1 if it is none. */
static int binary(const char *a, const char *operator, const char *b)
{
    static const char *const numbers[] = {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"};
    if (strcmp(operator, "=") == 0 || strcmp(operator, "==") == 0)
        return strcmp(a, b) == 0;
    if (strcmp(operator, "!=") == 0)
        return strcmp(a, b) != 0;
    if (strcmp(operator, "-nt") == 0)
        return compare_times(a, b) > 0;
    if (strcmp(operator, "-ot") == 0)
        return compare_times(a, b) < 0;
    for (int i = 0; i < 6; i++) {
        if (strcmp(operator, numbers[i]))
            continue;
        long x = strtol(a, NULL, 10), y = strtol(b, NULL, 10);
        return i == 0 ? x == y : i == 1 ? x != y : i == 2 ? x < y : i == 3 ? x <= y : i == 4 ? x > y : x >= y;
    }
    return -1;
}

static int primary(void)
{
    if (count >= 3) {
        int result = binary(argument[0], argument[1], argument[2]);
        if (result >= 0) {
            argument += 3;
            count -= 3;
            return result;
        }
    }
    if (count == 0) {
        failed = 1;
        return 0;
    }
    char *word = *argument++;
    count--;
    if (strcmp(word, "!") == 0 && count)
        return !primary();
    if (strcmp(word, "(") == 0 && count) {
        int result = any();
        if (count && strcmp(*argument, ")") == 0)
            argument++, count--;
        else
            failed = 1;
        return result;
    }
    if (word[0] == '-' && word[1] && !word[2] && count && strchr("nzrwxtefdsbcpLh", word[1])) {
        char *operand = *argument++;
        count--;
        if (word[1] == 'n' || word[1] == 'z')
            return (*operand != 0) == (word[1] == 'n');
        return file_test(word[1], operand);
    }
    return *word != 0;
}

static int all(void)
{
    int result = primary();
    while (count && strcmp(*argument, "-a") == 0) {
        argument++;
        count--;
        result = primary() && result;
    }
    return result;
}

static int any(void)
{
    int result = all();
    while (count && strcmp(*argument, "-o") == 0) {
        argument++;
        count--;
        result = all() || result;
    }
    return result;
}

int test_command(int argc, char **argv)
{
    count = argc - 1;
    argument = argv + 1;
    failed = 0;
    if (strcmp(argv[0], "[") == 0) {
        if (count == 0 || strcmp(argv[argc - 1], "]")) {
            complain("[", "] is missing");
            return 2;
        }
        count--;
    }
    if (count == 0)
        return 1;
    int result = any();
    if (failed || count) {
        complain("test", "bad expression");
        return 2;
    }
    return !result;
}
