/* Requests to drivers of characters. They go without waiting, and the answers come when they come. A driver
   that is replaced gets the requests that its predecessor has not answered. Data goes through buffers of FS,
   because a driver may not reach into other processes. */

#include <string.h>
#include <tern/device.h>
#include "outside.h"
#include "server.h"

#define BUFFER_BYTES 16384u
#define MINOR_NULL 3u
#define MINOR_ZERO 5u

struct request {
    uint8_t used, sent;
    endpoint_t client;         /* NONE: nobody waits for the answer any more */
    uint32_t number;
    struct message message;    /* as it goes to the driver */
    uint32_t device;
    uint8_t connection;        /* of a number that only this process of the driver knows */
    endpoint_t driver;         /* to which it was sent */
    uint32_t address, bytes;   /* in the client: of the part that is on its way */
    uint32_t left;             /* of a write: behind that part */
    uint32_t descriptor;       /* of an open or a selection */
};

static struct request requests[REQUESTS];
static uint8_t buffers[REQUESTS][BUFFER_BYTES];
static uint32_t last_number;
static uint32_t closing[MAJORS][256 / 32]; /* numbers of connections whose DEVICE_CLOSE found no room */
static uint32_t closing_count;
struct grant grants[GRANTS];

static uint32_t index_of(const struct request *request)
{
    return request - requests;
}

static int32_t is_writing(const struct request *request)
{
    return request->message.type == DEVICE_WRITE;
}

/* Takes a free entry. Numbers are never used again soon, so that a late answer finds no wrong request. */
static struct request *new_request(struct client *client, int32_t type, const struct file *file)
{
    for (struct request *request = requests; request < requests + REQUESTS; request++) {
        if (request->used)
            continue;
        memset(request, 0, sizeof *request);
        request->used = 1;
        request->client = client ? client->endpoint : NONE;
        request->device = file->device;
        request->connection = file->connection;
        request->number = ++last_number * REQUESTS + index_of(request);
        request->message.type = type;
        request->message.w[0] = request->number;
        request->message.w[1] = file->device & 255;
        return request;
    }
    return NULL;
}

static void end_request(struct request *request)
{
    grants[index_of(request)].to = NONE;
    request->used = 0;
}

static void give(struct request *request, struct driver *driver)
{
    struct grant *grant = &grants[index_of(request)];
    grant->to = driver->endpoint;
    grant->access = GRANT_READ | GRANT_WRITE;
    grant->address = (uint32_t)buffers[index_of(request)];
    grant->bytes = BUFFER_BYTES;
    request->driver = driver->endpoint;
    request->sent = server_post(driver->endpoint, &request->message) == 0;
}

/* Sends it, or leaves it for devices_send if there is no room or a new driver is on its way. */
static int send_request(struct request *request)
{
    struct driver *driver = driver_of(request->device);
    if (!driver || driver->endpoint == NONE)
        return -ENODEV;
    give(request, driver);
    return 0;
}

/* Nobody waits for the answer. The number of a connection is taken until the driver hears of its end. */
void device_close(const struct file *file)
{
    if (file->device == 0 || file->device >> 8 == MAJOR_MEMORY)
        return;
    struct request *request = new_request(NULL, DEVICE_CLOSE, file);
    if (request && send_request(request))
        end_request(request);
    if (!request && file->connection) {
        closing[file->device >> 8 & (MAJORS - 1)][(file->device & 255) / 32] |= 1u << file->device % 32;
        closing_count++;
    }
}

static void close_connection(uint32_t device)
{
    struct file file = {.device = device, .connection = 1};
    device_close(&file);
}

static void close_connections(void)
{
    for (uint32_t device = 0; closing_count && device < MAJORS << 8; device++) {
        uint32_t *bits = &closing[device >> 8][(device & 255) / 32];
        if (!(*bits >> device % 32 & 1))
            continue;
        *bits &= ~(1u << device % 32);
        closing_count--;
        uint32_t before = closing_count;
        close_connection(device);
        if (closing_count != before)
            return;
    }
}

int devices_waiting(void)
{
    if (closing_count)
        return 1;
    for (struct request *request = requests; request < requests + REQUESTS; request++)
        if (request->used && !request->sent)
            return 1;
    return 0;
}

void devices_send(void)
{
    for (struct request *request = requests; request < requests + REQUESTS; request++)
        if (request->used && !request->sent)
            send_request(request);
    close_connections();
}

static int start(struct client *client, struct request *request)
{
    int result = send_request(request);
    if (result) {
        end_request(request);
        return result;
    }
    client->waits = DEVICE;
    client->done = 0;
    return NO_REPLY;
}

/* The next part of a write. */
static int fill(struct request *request)
{
    uint32_t part = request->left < BUFFER_BYTES ? request->left : BUFFER_BYTES;
    if (sys_copy(request->client, request->address, SELF, (uint32_t)buffers[index_of(request)], part))
        return -EFAULT;
    request->bytes = part;
    request->left -= part;
    request->message.w[3] = part;
    return 0;
}

/* The devices of FS itself: null and zero. */
static int own_transfer(struct client *client, uint32_t minor, struct message *m, int is_write)
{
    uint32_t bytes = m->w[2], done = 0;
    m->w[0] = is_write ? bytes : 0;
    if (is_write || minor == MINOR_NULL)
        return 0;
    if (minor != MINOR_ZERO)
        return -ENODEV;
    memset(chunk, 0, bytes < CHUNK ? bytes : CHUNK);
    while (done < bytes) {
        uint32_t part = bytes - done < CHUNK ? bytes - done : CHUNK;
        if (sys_copy(SELF, (uint32_t)chunk, client->endpoint, m->w[1] + done, part))
            return -EFAULT;
        done += part;
    }
    m->w[0] = bytes;
    return 0;
}

int device_transfer(struct client *client, struct file *file, struct message *m, int is_write)
{
    if (file->device >> 8 == MAJOR_MEMORY)
        return own_transfer(client, file->device & 255, m, is_write);
    struct request *request = new_request(client, is_write ? DEVICE_WRITE : DEVICE_READ, file);
    if (!request)
        return -EAGAIN;
    request->address = m->w[1];
    request->message.w[2] = index_of(request);
    request->message.w[4] = file->flags & O_NONBLOCK;
    if (is_write) {
        request->left = m->w[2];
        int result = fill(request);
        if (result) {
            end_request(request);
            return result;
        }
    } else {
        request->bytes = request->message.w[3] = m->w[2] < BUFFER_BYTES ? m->w[2] : BUFFER_BYTES;
    }
    return start(client, request);
}

/* The file has its descriptor already, which is taken back if the driver refuses. */
int device_open(struct client *client, struct file *file)
{
    uint32_t descriptor = 0;
    while (client->files[descriptor] != file)
        descriptor++;
    int result = 0;
    if (file->device >> 8 == MAJOR_TTY) {
        file->device = client->terminal;
        result = file->device ? 0 : -ENODEV;
    }
    struct request *request = NULL;
    if (result == 0 && file->device >> 8 != MAJOR_MEMORY) {
        request = new_request(client, DEVICE_OPEN, file);
        result = request ? 0 : -EAGAIN;
    }
    if (request) {
        request->message.w[2] = client->endpoint;
        request->message.w[3] = file->flags;
        request->descriptor = descriptor;
        result = start(client, request);
    }
    if (result < 0) {
        client->files[descriptor] = NULL;
        file->device = 0;
        file_put(file);
    }
    return result;
}

int do_ioctl(struct client *client, struct message *m)
{
    struct file *file = file_of(client, m->w[0]);
    uint32_t number = m->w[1], bytes = IOCTL_BYTES(number);
    if (!file)
        return -EBADF;
    if (!file->node || (file->node->mode & S_IFMT) != S_IFCHR || file->device >> 8 == MAJOR_MEMORY ||
        bytes > BUFFER_BYTES)
        return -ENOTTY;
    struct request *request = new_request(client, DEVICE_IOCTL, file);
    if (!request)
        return -EAGAIN;
    request->message.w[2] = number;
    request->message.w[3] = index_of(request);
    request->message.w[4] = m->w[2];
    request->message.w[5] = file->flags & O_NONBLOCK;
    request->address = m->w[2];
    request->bytes = bytes;
    /* The buffer may have data of others. */
    if (!(number & 0x80000000u))
        memset(buffers[index_of(request)], 0, bytes);
    if (bytes && number & 0x80000000u &&
        sys_copy(client->endpoint, m->w[2], SELF, (uint32_t)buffers[index_of(request)], bytes)) {
        end_request(request);
        return -EFAULT;
    }
    return start(client, request);
}

int device_select(struct client *client, uint32_t descriptor, uint32_t what)
{
    struct request *request = new_request(client, DEVICE_SELECT, client->files[descriptor]);
    if (!request)
        return -EAGAIN;
    request->message.w[2] = what;
    request->descriptor = descriptor;
    int result = send_request(request);
    if (result)
        end_request(request);
    return result;
}

/* Part of a write is done: sends the next, if there is one. Returns whether it does. */
static int go_on_writing(struct client *client, struct request *request, int32_t result)
{
    if (result <= 0 || (uint32_t)result < request->bytes || request->left == 0)
        return 0;
    request->address += result;
    if (fill(request))
        return 0;
    client->done += result;
    return send_request(request) == 0;
}

/* Gives a client the answer to its request. */
static void finish(struct client *client, struct request *request, int32_t result)
{
    uint32_t bytes = 0;
    if (request->message.type == DEVICE_READ && result > 0)
        bytes = (uint32_t)result < request->bytes ? (uint32_t)result : request->bytes;
    if (request->message.type == DEVICE_IOCTL && result >= 0 && request->message.w[2] & 0x40000000u)
        bytes = request->bytes;
    if (bytes &&
        sys_copy(SELF, (uint32_t)buffers[index_of(request)], client->endpoint, request->address, bytes))
        result = -EFAULT;
    if (request->message.type == DEVICE_OPEN && result >= 0) {
        struct file *file = client->files[request->descriptor];
        if (request->device >> 8 == MAJOR_TERMINAL)
            client->terminal = request->device;
        if (result > 0) {
            file->device = (file->device & ~255u) | (result & 255);
            file->connection = 1;
        }
        result = request->descriptor;
    } else if (request->message.type == DEVICE_OPEN) {
        struct file *file = client->files[request->descriptor];
        client->files[request->descriptor] = NULL;
        file->device = 0;
        file_put(file);
    }
    if (is_writing(request) && client->done) {
        result = client->done + (result > 0 ? result : 0);
    }
    end_request(request);
    client_answer(client, result < 0 ? result : 0, result);
}

static void answered(struct request *request, int32_t result)
{
    struct client *client = request->client == NONE ? NULL : client_of(request->client);
    if (!client) {
        end_request(request);
        if (request->message.type == DEVICE_OPEN && result > 0)
            close_connection((request->device & ~255u) | (result & 255));
    } else if (request->message.type == DEVICE_SELECT) {
        uint32_t descriptor = request->descriptor;
        end_request(request);
        select_replied(client, descriptor, result);
    } else if (client->waits != DEVICE) {
        end_request(request);
    } else if (!is_writing(request) || !go_on_writing(client, request, result)) {
        finish(client, request, result);
    }
}

void device_replied(struct message *m)
{
    struct request *request = &requests[m->w[0] % REQUESTS];
    if (request->used && request->number == m->w[0] && request->driver == m->source)
        answered(request, m->w[1]);
}

/* The client waits no longer. The driver answers a request that it has all the same, which frees the
   entry. */
void devices_cancel(struct client *client)
{
    for (struct request *request = requests; request < requests + REQUESTS; request++) {
        if (!request->used || request->client != client->endpoint)
            continue;
        struct message m = {.type = DEVICE_CANCEL, .w = {request->number}};
        if (request->message.type == DEVICE_OPEN) {
            struct file *file = client->files[request->descriptor];
            client->files[request->descriptor] = NULL;
            file_put(file);
        }
        request->client = NONE;
        if (!request->sent || server_post(request->driver, &m))
            end_request(request);
    }
}

void devices_resend(const struct driver *driver)
{
    for (struct request *request = requests; request < requests + REQUESTS; request++) {
        if (!request->used || driver_of(request->device) != driver || request->driver == driver->endpoint)
            continue;
        if (request->client == NONE)
            end_request(request);
        else if (request->connection || send_request(request))
            answered(request, -EIO);
    }
}
