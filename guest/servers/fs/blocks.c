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
#define PART 262144u           /* bytes of one request: few enough for PATIENCE, by programmed I/O too */

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
    uint64_t end = 0, time;
    int result = ipc_sendrec(driver, m, PATIENCE);
    while (result == 0 && (m->type > 0 || m->w[0] != number)) {
        time = microseconds();
        if (end == 0)
            end = time + PATIENCE;
        result = time < end ? ipc_receive(driver, m, (uint32_t)(end - time)) : -ETIMEDOUT;
    }
    return result;
}

/* Memory that the driver of a disk may read or write. */
struct memory {
    endpoint_t of;             /* 0: FS */
    uint32_t address, bytes, access;
};

/* A request. Each has another grant than the last ones, so that a driver that is late does not reach what is
   for the next. */
static int ask(uint32_t device, struct message *m, const struct memory *memory)
{
    struct message request = *m;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        struct driver *driver = driver_of(device);
        if (!driver || driver->endpoint == NONE)
            return -ENODEV;
        endpoint_t endpoint = driver->endpoint;
        uint32_t grant = FIRST_BLOCK_GRANT + last_number % BLOCK_GRANTS;
        grants[grant] =
            (struct grant){endpoint, memory->access, memory->address, memory->bytes, memory->of};
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

static const struct memory nothing;

int block_open(uint32_t device, uint32_t *sectors)
{
    struct message m = {.type = BLOCK_OPEN, .w = {0, device & 255}};
    int result = ask(device, &m, &nothing);
    if (result < 0)
        return result;
    *sectors = m.w[2] ? ~0u : m.w[1]; /* what lies behind 2 TiB is out of reach */
    return 0;
}

static int move(uint32_t device, uint32_t sector, const struct memory *memory)
{
    int32_t type = memory->access == GRANT_READ ? BLOCK_WRITE : BLOCK_READ;
    struct message m = {.type = type, .w = {0, device & 255, sector, 0, 0, memory->bytes}};
    int result = ask(device, &m, memory);
    if (result < 0)
        return result;
    return m.w[1] == memory->bytes ? 0 : -EIO;
}

int device_read(uint32_t device, uint32_t sector, void *to, uint32_t bytes)
{
    return move(device, sector, &(struct memory){0, (uint32_t)to, bytes, GRANT_WRITE});
}

int device_write(uint32_t device, uint32_t sector, const void *from, uint32_t bytes)
{
    return move(device, sector, &(struct memory){0, (uint32_t)from, bytes, GRANT_READ});
}

int device_flush(uint32_t device)
{
    struct message m = {.type = BLOCK_FLUSH, .w = {0, device & 255}};
    int result = ask(device, &m, &nothing);
    return result < 0 ? result : 0;
}

/* Whole sectors go between the driver and the client, past FS. Returns their bytes. */
static int whole_sectors(struct client *client, struct file *file, uint32_t address, uint32_t bytes,
                         int is_write)
{
    uint32_t part = bytes < PART ? bytes - bytes % SECTOR : PART;
    struct memory memory = {client->endpoint, address, part, is_write ? GRANT_READ : GRANT_WRITE};
    int result = move(file->device, file->position / SECTOR, &memory);
    return result ? result : (int)part;
}

/* The sectors in which a part of the disk lies, as far as there is room for them. Returns the bytes of the
   part. */
static int parts_of_sectors(struct client *client, struct file *file, uint32_t address, uint32_t bytes,
                            int is_write)
{
    uint32_t sector = file->position / SECTOR, inside = file->position % SECTOR;
    uint32_t part = bytes < CHUNK - inside ? bytes : CHUNK - inside;
    uint32_t whole = (inside + part + SECTOR - 1) & ~(SECTOR - 1);
    int result = device_read(file->device, sector, chunk, whole);
    if (result)
        return result;
    if (!is_write)
        result = sys_copy(SELF, (uint32_t)chunk + inside, client->endpoint, address, part);
    else
        result = sys_copy(client->endpoint, address, SELF, (uint32_t)chunk + inside, part);
    if (result)
        return -EFAULT;
    if (is_write)
        result = device_write(file->device, sector, chunk, whole);
    return result ? result : (int)part;
}

int block_transfer(struct client *client, struct file *file, struct message *m, int is_write)
{
    uint32_t address = m->w[1], bytes = m->w[2], done = 0;
    uint64_t end = (uint64_t)file->sectors * SECTOR;
    int result = 0;
    if (file->position >= end)
        bytes = 0;
    else if (bytes > end - file->position)
        bytes = end - file->position;
    if (bytes == 0 && m->w[2] && is_write)
        return -ENOSPC;
    while (done < bytes) {
        uint32_t left = bytes - done;
        int is_whole = file->position % SECTOR == 0 && left >= SECTOR;
        result = (is_whole ? whole_sectors : parts_of_sectors)(client, file, address + done, left, is_write);
        if (result < 0)
            break;
        file->position += result;
        done += result;
    }
    m->w[0] = done;
    return done || result >= 0 ? 0 : result;
}
