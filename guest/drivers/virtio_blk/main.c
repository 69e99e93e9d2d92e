/* Virtio disks (appendix D of the specification that common/virtio.h names).

   For etc/services:

service virtio_blk
    program /sbin/virtio_blk
    calls map devio sdevio vdevio irqctl safecopy vcopy times log
    send-to fs
    pci 1af4:1001
    pci-needed
    major 8 0 15

   Arguments: disk=N, which of the disks it is (0 without it).
   Minor numbers: disk * 16 + partition. */

#include <tern/lib.h>
#include "../common/block.h"
#include "../common/driver.h"
#include "../common/ports.h"
#include "../common/virtio.h"

#define FEATURE_READ_ONLY (1u << 5)
#define FEATURE_FLUSH (1u << 9)

#define REQUEST_READ 0
#define REQUEST_WRITE 1
#define REQUEST_FLUSH 4

#define MINORS 16
#define BUFFER_SECTORS 128
#define PAGE_BYTES 4096u
#define TRIES 2
#define REQUEST_MICROSECONDS 5000000u

/* The first page of the memory that the device sees: a request's first and last part. */
struct request {
    uint32_t type, reserved;
    uint64_t sector;
    uint8_t status;            /* written by the device: 0 if it was done */
};

#define HEADER_BYTES 16
#define NOT_ANSWERED 0xff

static struct virtio device;
static struct virtio_queue queue;
static struct disk disks[DISKS_MAX];
static struct block_driver driver;
static volatile struct request *request;
static uint32_t request_physical, buffer_physical;

static int start_device(void)
{
    virtio_reset(&device, FEATURE_READ_ONLY | FEATURE_FLUSH);
    int error = virtio_queue_start(&device, &queue, 0, 3);
    if (!error)
        virtio_run(&device);
    return error;
}

/* Waits until the device has given the request back. */
static int finish(void)
{
    uint64_t end = driver_now() + REQUEST_MICROSECONDS;
    uint16_t head;
    uint32_t bytes;
    for (;;) {
        int result = virtio_take(&queue, &head, &bytes);
        if (result)
            return result < 0 ? result : 0;
        uint64_t now = driver_now();
        if (now >= end)
            return -ETIMEDOUT;
        driver_wait(1u << device.line, (uint32_t)(end - now));
        virtio_acknowledge(&device);
    }
}

static int execute(uint32_t type, uint64_t sector, uint32_t sectors)
{
    uint16_t status = 1;
    request->type = type;
    request->reserved = 0;
    request->sector = sector;
    request->status = NOT_ANSWERED;
    virtio_describe(&queue, 0, request_physical, HEADER_BYTES, VIRTIO_NEXT, 1);
    if (sectors) {
        status = 2;
        virtio_describe(&queue, 1, buffer_physical, sectors * SECTOR_BYTES,
                        VIRTIO_NEXT | (type == REQUEST_READ ? VIRTIO_WRITE : 0), 2);
    }
    virtio_describe(&queue, status, request_physical + HEADER_BYTES, 1, VIRTIO_WRITE, 0);
    virtio_give(&queue, 0);
    virtio_notify(&queue);
    int error = finish();
    return error ? error : request->status ? -EIO : 0;
}

static int perform(uint32_t type, uint64_t sector, uint32_t sectors)
{
    int error = -EIO;
    for (int try = 0; try < TRIES && error; try++) {
        error = execute(type, sector, sectors);
        if (!error)
            return 0;
        log_line("virtio_blk: request %u for %u sectors at %u failed: %d", (unsigned)type, (unsigned)sectors,
                 (unsigned)sector, error);
        if (start_device())
            break;
    }
    return -EIO;
}

static int read(struct disk *disk, uint64_t sector, uint32_t sectors)
{
    (void)disk;
    return perform(REQUEST_READ, sector, sectors);
}

static int write(struct disk *disk, uint64_t sector, uint32_t sectors)
{
    (void)disk;
    return perform(REQUEST_WRITE, sector, sectors);
}

static int flush(struct disk *disk)
{
    (void)disk;
    return device.features & FEATURE_FLUSH ? perform(REQUEST_FLUSH, 0, 0) : 0;
}

static void interrupt(uint32_t lines)
{
    (void)lines;
    virtio_acknowledge(&device);
}

static int start(struct disk *disk)
{
    uint32_t address = 0;
    int error = virtio_find(&device);
    if (!error)
        error = sys_map(SELF, &address, PAGE_BYTES + BUFFER_SECTORS * SECTOR_BYTES,
                        MAP_WRITE | MAP_CONTIGUOUS, &request_physical);
    if (error)
        return error;
    request = (volatile struct request *)address;
    buffer_physical = request_physical + PAGE_BYTES;
    driver.buffer = (uint8_t *)address + PAGE_BYTES;
    error = start_device();
    if (error)
        return error;
    disk->sectors = (uint64_t)in_double(device.base + VIRTIO_CONFIGURATION + 4) << 32 |
                    in_double(device.base + VIRTIO_CONFIGURATION);
    disk->read_only = (device.features & FEATURE_READ_ONLY) != 0;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct server_request requests[] = {BLOCK_REQUESTS, {0, NULL}};
    static const struct server server = {.requests = requests, .interrupt = interrupt};
    driver_start(argc, argv);
    driver.minors = MINORS;
    driver.buffer_sectors = BUFFER_SECTORS;
    driver.read = read;
    driver.write = write;
    driver.flush = flush;
    int error = start(&disks[driver_number("disk", 0) % DISKS_MAX]);
    if (error) {
        log_line("virtio_blk: there is no disk: %d", error);
        server_end(1);
    }
    block_start(&driver, disks, DISKS_MAX);
    driver_run(&server, NULL);
    return 0;
}
