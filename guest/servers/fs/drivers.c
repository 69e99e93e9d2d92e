/* Which process serves which device: RS says so. */

#include "server.h"

#define DRIVERS 32

static struct driver drivers[DRIVERS];
static uint32_t driver_count;

struct driver *driver_of(uint32_t device)
{
    uint32_t major = device >> 8, minor = device & 255;
    for (struct driver *driver = drivers; driver < drivers + driver_count; driver++)
        if (driver->major == major && minor >= driver->first && minor <= driver->last)
            return driver;
    return NULL;
}

void driver_up(const struct message *m)
{
    struct driver wanted = {m->w[1], m->w[0], m->w[2], m->w[3]}, *driver = drivers;
    while (driver < drivers + driver_count &&
           (driver->major != wanted.major || driver->first != wanted.first || driver->last != wanted.last))
        driver++;
    if (driver == drivers + DRIVERS)
        return;
    if (driver == drivers + driver_count)
        driver_count++;
    if (driver->endpoint != wanted.endpoint)
        files_lose_connections(driver);
    *driver = wanted;
    devices_resend(driver);
}
