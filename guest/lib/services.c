/* The kernel's log, the data store and the reincarnation server as functions. */

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tern/lib.h>
#include <tern/rs.h>

#define LOG_BYTES 256

void log_line(const char *format, ...)
{
    char line[LOG_BYTES];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (length > 0)
        sys_log(line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

/* A request about a name. Returns the reply's type or the trap's error; w[0] of the reply is in *value. */
static int named(endpoint_t server, int request, const char *name, uint32_t third, uint32_t fourth,
                 uint32_t *value)
{
    struct message m = {.w = {(uint32_t)name, strlen(name), third, fourth}};
    int result = call(server, request, &m);
    if (value)
        *value = m.w[0];
    return result;
}

int ds_put(const char *name, const void *value, uint32_t bytes)
{
    return named(SERVICE(DS), DS_PUT, name, (uint32_t)value, bytes, NULL);
}

int ds_get(const char *name, void *value, uint32_t bytes)
{
    uint32_t got;
    int result = named(SERVICE(DS), DS_GET, name, (uint32_t)value, bytes, &got);
    return result < 0 ? result : (int)got;
}

int ds_delete(const char *name)
{
    return named(SERVICE(DS), DS_DELETE, name, 0, 0, NULL);
}

int rs_call(int request, const char *name, uint32_t argument, uint32_t second)
{
    return named(SERVICE(RS), request, name, argument, second, NULL);
}

int rs_list(struct service_info *services, uint32_t bytes)
{
    struct message m = {.w = {(uint32_t)services, bytes}};
    int result = call(SERVICE(RS), RS_LIST, &m);
    return result < 0 ? result : (int)m.w[0];
}
