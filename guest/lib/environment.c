/* The environment. crt0 sets environ; a table of our own takes its place when it grows. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char **environ;
static char **own;

static char **find(const char *name, size_t length)
{
    char **entry;

    for (entry = environ; entry && *entry; entry++)
        if (!strncmp(*entry, name, length) && (*entry)[length] == '=')
            return entry;
    return NULL;
}

char *getenv(const char *name)
{
    size_t length = strlen(name);
    char **entry = find(name, length);

    return entry ? *entry + length + 1 : NULL;
}

int putenv(char *assignment)
{
    size_t length = strcspn(assignment, "="), count = 0;
    char **entry = find(assignment, length), **table;

    if (!assignment[length])
        return unsetenv(assignment);
    if (entry) {
        *entry = assignment;
        return 0;
    }
    while (environ && environ[count])
        count++;
    table = realloc(own, (count + 2) * sizeof *table);
    if (!table)
        return -1;
    if (environ != own && environ)
        memcpy(table, environ, count * sizeof *table);
    table[count] = assignment;
    table[count + 1] = NULL;
    environ = own = table;
    return 0;
}

int setenv(const char *name, const char *value, int overwrite)
{
    size_t length = strlen(name);
    char *assignment;

    if (!length || strchr(name, '=')) {
        errno = EINVAL;
        return -1;
    }
    if (!overwrite && getenv(name))
        return 0;
    assignment = malloc(length + strlen(value) + 2);
    if (!assignment)
        return -1;
    strcpy(stpcpy(stpcpy(assignment, name), "="), value);
    return putenv(assignment);
}

int unsetenv(const char *name)
{
    char **entry = find(name, strlen(name));

    for (; entry && *entry; entry++)
        entry[0] = entry[1];
    return 0;
}

int clearenv(void)
{
    environ = NULL;
    return 0;
}
