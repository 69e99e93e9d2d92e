/* Virtio network cards (appendix C of the specification that common/virtio.h names).

   For etc/services:

service virtio_net
    program /sbin/virtio_net
    calls map devio sdevio vdevio irqctl safecopy vcopy times log
    send-to net
    pci 1af4:1000
    pci-needed
    card
*/

#include <string.h>
#include <tern/lib.h>
#include "../common/card.h"
#include "../common/driver.h"
#include "../common/ports.h"
#include "../common/virtio.h"

#define FEATURE_ADDRESS (1u << 5)   /* the card has an address of its own */

/* Each frame has this header before it, which is zero without features that use it. */
#define HEADER_BYTES 10u
#define SLOT_BYTES 2048u
#define FRAME_AT 64u                /* offset in a slot; the header is at its beginning */

/* Slots: first those of frames that come, then those of frames that go. */
#define COMING 32u
#define GOING 16u
#define RECEIVE_QUEUE 0
#define SEND_QUEUE 1
#define NO_INTERRUPT 1              /* in available->flags */

static struct virtio device;
static struct virtio_queue coming, going;
static struct card card;
static uint8_t *slots;
static uint32_t slots_physical;

/* Slots that the device does not have, of frames that go. */
static uint16_t free_slots[GOING];
static uint32_t free_count;

/* The frame that was taken back and not let go yet. */
static uint16_t held_slot;
static uint32_t held_bytes;

/* A slot's header and frame are two descriptors: older devices want it so. */
static void describe(struct virtio_queue *queue, uint16_t i, uint32_t slot, uint32_t bytes, uint16_t flags)
{
    uint32_t physical = slots_physical + slot * SLOT_BYTES;
    virtio_describe(queue, 2 * i, physical, HEADER_BYTES, VIRTIO_NEXT | flags, 2 * i + 1);
    virtio_describe(queue, 2 * i + 1, physical + FRAME_AT, bytes, flags, 0);
}

static void give_coming(uint16_t i)
{
    describe(&coming, i, i, FRAME_MAX, VIRTIO_WRITE);
    virtio_give(&coming, 2 * i);
}

static int start_device(void)
{
    virtio_reset(&device, FEATURE_ADDRESS);
    int error = virtio_queue_start(&device, &coming, RECEIVE_QUEUE, 2 * COMING);
    if (!error)
        error = virtio_queue_start(&device, &going, SEND_QUEUE, 2 * GOING);
    if (error)
        return error;
    going.available->flags = NO_INTERRUPT;
    held_bytes = 0;
    free_count = GOING;
    for (uint16_t i = 0; i < GOING; i++)
        free_slots[i] = i;
    for (uint16_t i = 0; i < COMING; i++)
        give_coming(i);
    virtio_run(&device);
    virtio_notify(&coming);
    return 0;
}

static void restart_device(void)
{
    log_line("virtio_net: the card has lost track of its frames");
    if (start_device())
        server_end(1);
}

/* Takes back the slots of frames that have gone. */
static void reclaim(void)
{
    uint16_t head;
    uint32_t bytes;
    int result;
    while ((result = virtio_take(&going, &head, &bytes)) > 0) {
        if (head % 2 || head >= 2 * GOING || free_count == GOING) {
            result = -EIO;
            break;
        }
        free_slots[free_count++] = head / 2;
    }
    if (result < 0)
        restart_device();
}

static uint8_t *room(void)
{
    if (free_count == 0)
        reclaim();
    if (free_count == 0) {
        /* From now on the device interrupts; it may have been done just before. */
        going.available->flags = 0;
        reclaim();
    }
    return free_count ? slots + (COMING + free_slots[free_count - 1]) * SLOT_BYTES + FRAME_AT : NULL;
}

static int send(uint32_t bytes)
{
    uint16_t i = free_slots[--free_count];
    going.available->flags = NO_INTERRUPT;
    memset(slots + (COMING + i) * SLOT_BYTES, 0, HEADER_BYTES);
    describe(&going, i, COMING + i, bytes, 0);
    virtio_give(&going, 2 * i);
    virtio_notify(&going);
    return 0;
}

static const uint8_t *received(uint32_t *bytes)
{
    uint16_t head;
    while (!held_bytes) {
        uint32_t written;
        int result = virtio_take(&coming, &head, &written);
        if (result == 0)
            return NULL;
        if (result < 0 || head % 2 || head >= 2 * COMING) {
            restart_device();
            return NULL;
        }
        held_slot = head / 2;
        if (written < HEADER_BYTES + FRAME_MIN || written > HEADER_BYTES + FRAME_MAX)
            give_coming(held_slot);
        else
            held_bytes = written - HEADER_BYTES;
    }
    *bytes = held_bytes;
    return slots + held_slot * SLOT_BYTES + FRAME_AT;
}

static void release(void)
{
    held_bytes = 0;
    give_coming(held_slot);
    virtio_notify(&coming);
}

static void interrupt(uint32_t lines)
{
    (void)lines;
    virtio_acknowledge(&device);
    if (virtio_has_used(&coming))
        card_has_frames();
    if (virtio_has_used(&going))
        card_has_room();
}

static int start(void)
{
    uint32_t address = 0;
    int error = virtio_find(&device);
    if (!error)
        error = sys_map(SELF, &address, (COMING + GOING) * SLOT_BYTES, MAP_WRITE | MAP_CONTIGUOUS,
                        &slots_physical);
    if (error)
        return error;
    slots = (uint8_t *)address;
    error = start_device();
    for (uint16_t i = 0; i < ADDRESS_BYTES; i++)
        card.address[i] = in_byte(device.base + VIRTIO_CONFIGURATION + i);
    return error ? error : device.features & FEATURE_ADDRESS ? 0 : -ENODEV;
}

int main(int argc, char **argv)
{
    static const struct server_request requests[] = {CARD_REQUESTS, {0, NULL}};
    static const struct server server = {.requests = requests, .interrupt = interrupt};
    driver_start(argc, argv);
    int error = start();
    if (error) {
        log_line("virtio_net: there is no card: %d", error);
        server_end(1);
    }
    card.room = room;
    card.send = send;
    card.received = received;
    card.release = release;
    card_start(&card);
    driver_run(&server, NULL);
    return 0;
}
