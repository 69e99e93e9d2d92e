/* Virtio devices of PCI by their I/O ports. */

#include <string.h>
#include <tern/lib.h>
#include "driver.h"
#include "ports.h"
#include "virtio.h"

/* Registers (section 2.2.2). */
#define DEVICE_FEATURES 0
#define DRIVER_FEATURES 4
#define QUEUE_ADDRESS 8
#define QUEUE_SIZE 12
#define QUEUE_SELECT 14
#define QUEUE_NOTIFY 16
#define DEVICE_STATUS 18
#define INTERRUPT_STATUS 19

#define ACKNOWLEDGE 1
#define DRIVER 2
#define DRIVER_OK 4

#define QUEUE_ALIGNMENT 4096u
#define QUEUE_MAX 1024

int virtio_find(struct virtio *device)
{
    uint16_t last;
    if (!driver_ports(0, &device->base, &last) || !driver_line(0, &device->line))
        return -ENODEV;
    return interrupt_attach(device->line);
}

void virtio_reset(struct virtio *device, uint32_t features)
{
    out_byte(device->base + DEVICE_STATUS, 0);
    out_byte(device->base + DEVICE_STATUS, ACKNOWLEDGE);
    out_byte(device->base + DEVICE_STATUS, ACKNOWLEDGE | DRIVER);
    device->features = in_double(device->base + DEVICE_FEATURES) & features;
    out_double(device->base + DRIVER_FEATURES, device->features);
}

void virtio_run(struct virtio *device)
{
    out_byte(device->base + DEVICE_STATUS, ACKNOWLEDGE | DRIVER | DRIVER_OK);
}

static uint32_t aligned(uint32_t bytes)
{
    return (bytes + QUEUE_ALIGNMENT - 1) & ~(QUEUE_ALIGNMENT - 1);
}

/* Section 2.3: the descriptors and the available ring, and from the next page on the used ring. */
static int lay_out(struct virtio_queue *queue)
{
    uint32_t first = aligned(queue->size * sizeof(struct virtio_descriptor) + 6 + 2 * queue->size);
    uint32_t bytes = first + aligned(6 + 8 * queue->size);
    if (queue->memory && queue->memory_bytes != bytes)
        return -EIO; /* the device has changed its mind about its queue */
    if (!queue->memory) {
        int error = sys_map(SELF, &queue->memory, bytes, MAP_WRITE | MAP_CONTIGUOUS, &queue->physical);
        if (error)
            return error;
        queue->memory_bytes = bytes;
    }
    memset((void *)queue->memory, 0, bytes);
    queue->descriptors = (volatile struct virtio_descriptor *)queue->memory;
    queue->available = (volatile struct virtio_available *)(queue->memory +
                                                            queue->size * sizeof(struct virtio_descriptor));
    queue->used = (volatile struct virtio_used *)(queue->memory + first);
    queue->seen = 0;
    return 0;
}

int virtio_queue_start(struct virtio *device, struct virtio_queue *queue, uint16_t number, uint16_t least)
{
    queue->device = device;
    queue->number = number;
    out_word(device->base + QUEUE_SELECT, number);
    queue->size = in_word(device->base + QUEUE_SIZE);
    if (queue->size < least || queue->size > QUEUE_MAX || queue->size & (queue->size - 1))
        return -EIO;
    int error = lay_out(queue);
    if (!error)
        out_double(device->base + QUEUE_ADDRESS, queue->physical / QUEUE_ALIGNMENT);
    return error;
}

void virtio_describe(struct virtio_queue *queue, uint16_t i, uint32_t physical, uint32_t bytes,
                     uint16_t flags, uint16_t next)
{
    volatile struct virtio_descriptor *d = &queue->descriptors[i];
    d->address = physical;
    d->bytes = bytes;
    d->flags = flags;
    d->next = next;
}

/* The processor does not change the order of writes (SDM vol. 3, 8.2.2); neither may the compiler. */
#define BARRIER() __asm__ volatile("" : : : "memory")

void virtio_give(struct virtio_queue *queue, uint16_t head)
{
    uint16_t index = queue->available->index;
    queue->available->ring[index % queue->size] = head;
    BARRIER();
    queue->available->index = index + 1;
    BARRIER();
}

void virtio_notify(struct virtio_queue *queue)
{
    out_word(queue->device->base + QUEUE_NOTIFY, queue->number);
}

int virtio_has_used(const struct virtio_queue *queue)
{
    return queue->used->index != queue->seen;
}

int virtio_take(struct virtio_queue *queue, uint16_t *head, uint32_t *bytes)
{
    uint16_t there = queue->used->index - queue->seen;
    if (there == 0)
        return 0;
    BARRIER();
    uint32_t id = queue->used->ring[queue->seen % queue->size].id;
    *bytes = queue->used->ring[queue->seen % queue->size].bytes;
    if (there > queue->size || id >= queue->size)
        return -EIO;
    *head = (uint16_t)id;
    queue->seen++;
    return 1;
}

void virtio_acknowledge(struct virtio *device)
{
    in_byte(device->base + INTERRUPT_STATUS);
    interrupt_enable(device->line);
}
