/* Virtio devices of PCI by their I/O ports ("Virtio PCI Card Specification 0.9.5", Rusty Russell: "the
   specification" below). Later devices that also know this interface ("transitional") can be driven too. */

#ifndef VIRTIO_H
#define VIRTIO_H

#include <stdint.h>

/* The header that all devices have (section 2.2.2). The device's own configuration follows it. */
#define VIRTIO_CONFIGURATION 20

/* Descriptors (section 2.3). */
#define VIRTIO_NEXT 1
#define VIRTIO_WRITE 2       /* the device writes it */

struct virtio_descriptor {
    uint64_t address;
    uint32_t bytes;
    uint16_t flags, next;
};

struct virtio_available {
    uint16_t flags, index, ring[];
};

struct virtio_used {
    uint16_t flags, index;
    struct {
        uint32_t id, bytes;
    } ring[];
};

struct virtio {
    uint16_t base;
    uint32_t line;
    uint32_t features;           /* that the device and the driver have */
};

struct virtio_queue {
    struct virtio *device;
    uint16_t number, size;       /* of descriptors */
    uint16_t seen;               /* index of the used ring up to which chains were taken back */
    uint32_t memory, memory_bytes, physical;
    volatile struct virtio_descriptor *descriptors;
    volatile struct virtio_available *available;
    volatile struct virtio_used *used;
};

/* Finds the device in the driver's arguments and attaches to its interrupt. */
int virtio_find(struct virtio *device);

/* Resets the device and accepts these features, as far as it has them. */
void virtio_reset(struct virtio *device, uint32_t features);

/* Sets up a queue, which must have so many descriptors at least. It can be set up again after a reset. */
int virtio_queue_start(struct virtio *device, struct virtio_queue *queue, uint16_t number, uint16_t least);

/* The device may work now. */
void virtio_run(struct virtio *device);

/* Describes memory; `next` is the next descriptor of its chain, for flags with VIRTIO_NEXT. */
void virtio_describe(struct virtio_queue *queue, uint16_t i, uint32_t physical, uint32_t bytes,
                     uint16_t flags, uint16_t next);

/* Gives the chain that begins with this descriptor to the device; and says that there are some. */
void virtio_give(struct virtio_queue *queue, uint16_t head);
void virtio_notify(struct virtio_queue *queue);

/* Takes a chain back: its first descriptor and how much the device wrote. Returns 0 if there is none, and a
   negative error if the device has made nonsense of the ring: it needs a reset. */
int virtio_take(struct virtio_queue *queue, uint16_t *head, uint32_t *bytes);

/* Whether there is one to be taken back. */
int virtio_has_used(const struct virtio_queue *queue);

/* Acknowledges the device's interrupt. */
void virtio_acknowledge(struct virtio *device);

#endif
