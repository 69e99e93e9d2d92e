/* Requests of POSIX's functions to PM and FS. */

#include <errno.h>
#include <string.h>
#include <tern/lib.h>
#include "request.h"

/* A service that is replaced while a request is in it answers ERESTART; one that is replaced again and again
   must not keep us for ever. */
#define ATTEMPTS 16

int request(endpoint_t server, int32_t type, struct message *message)
{
    struct message copy = *message;
    int result = -EIO;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        *message = copy;
        result = call(server, type, message);
        if (result != -ERESTART)
            break;
    }
    if (result >= 0)
        return result;
    /* The kernel's own errors mean that there is no such server, or none any more. */
    errno = result <= -EDEADEND ? EIO : -result;
    return -1;
}

int pm_call(int32_t type, uint32_t first, uint32_t second, uint32_t third)
{
    struct message m = {.w = {first, second, third}};
    return request(SERVICE(PM), type, &m) < 0 ? -1 : 0;
}

int fs_call(int32_t type, uint32_t first, uint32_t second, uint32_t third)
{
    struct message m = {.w = {first, second, third}};
    return request(SERVICE(FS), type, &m) < 0 ? -1 : 0;
}

int pm_value(int32_t type, uint32_t first, uint32_t second, uint32_t third)
{
    struct message m = {.w = {first, second, third}};
    return request(SERVICE(PM), type, &m) < 0 ? -1 : (int)m.w[0];
}

int fs_value(int32_t type, uint32_t first, uint32_t second, uint32_t third)
{
    struct message m = {.w = {first, second, third}};
    return request(SERVICE(FS), type, &m) < 0 ? -1 : (int)m.w[0];
}

int path_call(int32_t type, const char *path, uint32_t third, uint32_t fourth)
{
    struct message m = {.w = {WORD(path), strlen(path), third, fourth}};
    return request(SERVICE(FS), type, &m) < 0 ? -1 : 0;
}

int path_value(int32_t type, const char *path, uint32_t third, uint32_t fourth)
{
    struct message m = {.w = {WORD(path), strlen(path), third, fourth}};
    return request(SERVICE(FS), type, &m) < 0 ? -1 : (int)m.w[0];
}
