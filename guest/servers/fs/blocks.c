/* Disks: requests to their drivers, for which FS waits. When a driver dies, FS asks its successor. */

#include <string.h>
#include <tern/device.h>
#include "outside.h"
#include "server.h"

#define SECTOR 512u
#define PATIENCE 15000000u     /* microseconds for an answer: far more than RS gives a driver that hangs */
#define NEWS_PATIENCE 1000000u
#define NEWS_ROUNDS 30
#define ATTEMPTS 6

static uint32_t last_number;

/* Waits until RS has said that there is a new driver. Its pings are answered meanwhile. */
static int wait_for_driver(uint32_t device, endpoint_t old)
{
    for (int round = 0; round < NEWS_ROUNDS; round++) {
        struct message m;
        struct driver *driver = driver_of(device);
        if (!driver || driver->endpoint == NONE)
            return -ENODEV;
        if (driver->endpoint != old)
            return 0;
        if (ipc_receive(server_rs(), &m, NEWS_PATIENCE))
            continue;
        if (m.type == NOTIFICATION)
            ipc_notify(SERVICE(RS));
        else if (m.type == FS_DEVICE_UP)
            driver_up(&m);
    }
    return -EIO;
}

/* Sends a request and waits for its answer, not for that to a request that FS has given up. */
static int exchange(endpoint_t driver, struct message *m)
{
    uint32_t number = m->w[0] = ++last_number;
    uint64_t end = microseconds() + PATIENCE, time;
    int result = ipc_sendrec(driver, m, PATIENCE);
    while (result == 0 && (m->type > 0 || m->w[0] != number)) {
        time = microseconds();
        result = time < end ? ipc_receive(driver, m, (uint32_t)(end - time)) : -ETIMEDOUT;
    }
    return result;
}

/* A request, with memory of FS that the driver may read or write. Each request has another grant than the
   last ones, so that a driver that is late does not reach what is for the next. */
static int ask(uint32_t device, struct message *m, void *memory, uint32_t bytes, uint32_t access)
{
    struct message request = *m;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        struct driver *driver = driver_of(device);
        if (!driver || driver->endpoint == NONE)
            return -ENODEV;
        endpoint_t endpoint = driver->endpoint;
        uint32_t grant = FIRST_BLOCK_GRANT + last_number % BLOCK_GRANTS;
        grants[grant] = (struct grant){endpoint, access, (uint32_t)memory, bytes};
        *m = request;
        m->w[4] = grant;
        int result = exchange(endpoint, m);
        grants[grant].to = NONE;
        if (result == 0)
            return m->type;
        if (result != -EDEADEND || wait_for_driver(device, endpoint))
            return -EIO;
    }
    return -EIO;
}

int block_open(uint32_t device, uint32_t *sectors)
{
    struct message m = {.type = BLOCK_OPEN, .w = {0, device & 255}};
    int result = ask(device, &m, NULL, 0, 0);
    if (result < 0)
        return result;
    *sectors = m.w[2] ? ~0u : m.w[1]; /* what lies behind 2 TiB is out of reach */
    return 0;
}

static int move(uint32_t device, int32_t type, uint32_t sector, void *memory, uint32_t bytes, uint32_t access)
{
    struct message m = {.type = type, .w = {0, device & 255, sector, 0, 0, bytes}};
    int result = ask(device, &m, memory, bytes, access);
    if (result < 0)
        return result;
    return m.w[1] == bytes ? 0 : -EIO;
}

int device_read(uint32_t device, uint32_t sector, void *to, uint32_t bytes)
{
    return move(device, BLOCK_READ, sector, to, bytes, GRANT_WRITE);
}

int device_write(uint32_t device, uint32_t sector, const void *from, uint32_t bytes)
{
    return move(device, BLOCK_WRITE, sector, (void *)from, bytes, GRANT_READ);
}

int device_flush(uint32_t device)
{
    struct message m = {.type = BLOCK_FLUSH, .w = {0, device & 255}};
    int result = ask(device, &m, NULL, 0, 0);
    return result < 0 ? result : 0;
}

/* The sectors in which a part of the disk lies, as far as there is room for them. */
static int one_part(struct client *client, struct file *file, uint32_t address, uint32_t bytes, int is_write)
{
    uint32_t sector = file->position / SECTOR, inside = file->position % SECTOR;
    uint32_t whole = (inside + bytes + SECTOR - 1) & ~(SECTOR - 1);
    int result = 0;
    if (!is_write || inside || bytes % SECTOR)
        result = device_read(file->device, sector, chunk, whole);
    if (result == 0 && !is_write)
        return sys_copy(SELF, (uint32_t)chunk + inside, client->endpoint, address, bytes) ? -EFAULT : 0;
    if (result == 0 && sys_copy(client->endpoint, address, SELF, (uint32_t)chunk + inside, bytes))
        return -EFAULT;
    return result ? result : device_write(file->device, sector, chunk, whole);
}

int block_transfer(struct client *client, struct file *file, struct message *m, int is_write)
{
    uint32_t sectors, address = m->w[1], bytes = m->w[2], done = 0;
    int result = block_open(file->device, &sectors);
    if (result)
        return result;
    uint64_t end = (uint64_t)sectors * SECTOR;
    if (file->position >= end)
        bytes = 0;
    else if (bytes > end - file->position)
        bytes = end - file->position;
    if (bytes == 0 && m->w[2] && is_write)
        return -ENOSPC;
    while (done < bytes && result == 0) {
        uint32_t part = CHUNK - file->position % SECTOR;
        if (part > bytes - done)
            part = bytes - done;
        result = one_part(client, file, address + done, part, is_write);
        if (result)
            break;
        file->position += part;
        done += part;
    }
    m->w[0] = done;
    return done ? 0 : result;
}
