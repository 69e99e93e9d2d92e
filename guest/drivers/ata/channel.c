/* A channel: its registers, waiting, reset and commands. */

#include <tern/errno.h>
#include <stddef.h>
#include "../common/driver.h"
#include "../common/ports.h"
#include "ata.h"

/* The device is polled so often before the driver waits: most are ready at once. */
#define POLLS 16
#define POLL_MICROSECONDS 1000u
#define READY_MICROSECONDS 3000000u
#define INTERRUPT_MICROSECONDS 5000000u
#define RESET_MICROSECONDS 5u
#define AFTER_RESET_MICROSECONDS 2000u

/* Reads the status without acknowledging the interrupt. */
static uint8_t alternate_status(const struct channel *channel)
{
    return in_byte(channel->control);
}

/* Waits until these bits of the status have this value. */
static int wait_status(const struct channel *channel, uint8_t mask, uint8_t value)
{
    for (uint32_t i = 0; i < POLLS; i++)
        if ((alternate_status(channel) & mask) == value)
            return 0;
    for (uint64_t end = driver_now() + READY_MICROSECONDS; driver_now() < end;) {
        driver_pause(POLL_MICROSECONDS);
        if ((alternate_status(channel) & mask) == value)
            return 0;
    }
    return -ETIMEDOUT;
}

/* Without a device the bus floats, or pull-downs make it 0. */
int channel_is_empty(const struct channel *channel)
{
    uint8_t status = alternate_status(channel);
    return status == 0xff || status == 0x7f || status == 0;
}

void channel_interrupts(struct channel *channel, int on)
{
    out_byte(channel->control, on ? 0 : CONTROL_NO_INTERRUPT);
}

void channel_reset(struct channel *channel)
{
    channel->selected = NULL;
    out_byte(channel->control, CONTROL_RESET | CONTROL_NO_INTERRUPT);
    driver_pause(RESET_MICROSECONDS);
    out_byte(channel->control, CONTROL_NO_INTERRUPT);
    driver_pause(AFTER_RESET_MICROSECONDS);
    if (!channel_is_empty(channel))
        wait_status(channel, STATUS_BUSY, 0);
    in_byte(channel->base + STATUS);
}

int drive_select(const struct drive *drive)
{
    struct channel *channel = drive->channel;
    if (channel->selected != drive) {
        out_byte(channel->base + DEVICE, DEVICE_LBA | (drive->second ? DEVICE_SECOND : 0));
        /* 400 ns until the status is that of this device (section 9.3): each read takes more than 100 ns. */
        for (int i = 0; i < 4; i++)
            alternate_status(channel);
        channel->selected = drive;
    }
    return wait_status(channel, STATUS_BUSY | STATUS_REQUEST, 0);
}

/* Adds writes of a command's registers to a vector. */
static struct port_access *add(struct port_access *at, uint32_t port, uint32_t value)
{
    *at = (struct port_access){IO_OUT, 1, port, value & 0xff};
    return at + 1;
}

/* Count and address, which 48-bit commands want twice: first their upper, then their lower bytes. */
static struct port_access *add_address(struct port_access *at, uint16_t base, uint32_t count, uint32_t low,
                                       uint32_t mid, uint32_t high)
{
    at = add(at, base + SECTOR_COUNT, count);
    at = add(at, base + LBA_LOW, low);
    at = add(at, base + LBA_MID, mid);
    return add(at, base + LBA_HIGH, high);
}

int channel_command(const struct drive *drive, const struct command *command)
{
    struct port_access accesses[10], *end = accesses;
    uint16_t base = drive->channel->base;
    uint64_t sector = command->sector;
    uint32_t low = (uint32_t)sector;
    int error = drive_select(drive);
    if (error)
        return error;
    if (command->wide)
        end = add_address(end, base, command->sectors >> 8, low >> 24, (uint32_t)(sector >> 32),
                          (uint32_t)(sector >> 40));
    end = add_address(end, base, command->sectors, low, low >> 8, low >> 16);
    end = add(end, base + DEVICE, DEVICE_LBA | (drive->second ? DEVICE_SECOND : 0)
                                      | (command->wide ? 0 : low >> 24 & 0x0f));
    end = add(end, base + COMMAND, command->code);
    port_vector(accesses, end - accesses);
    return 0;
}

static int check(uint8_t status)
{
    if (status & STATUS_BUSY)
        return -ETIMEDOUT;
    return status & (STATUS_ERROR | STATUS_FAULT) ? -EIO : 0;
}

/* Waits for the channel's interrupt; reading the status acknowledges it. */
int channel_wait_interrupt(struct channel *channel, uint8_t *status)
{
    uint32_t came = driver_wait(1u << channel->line, INTERRUPT_MICROSECONDS);
    *status = in_byte(channel->base + STATUS);
    interrupt_enable(channel->line);
    if (came && *status & STATUS_BUSY) {
        /* Another device's interrupt on the same line. */
        if (wait_status(channel, STATUS_BUSY, 0) == 0)
            *status = in_byte(channel->base + STATUS);
    }
    /* An interrupt that got lost, from a device that is done, is made good. */
    return check(*status);
}

/* Waits without an interrupt until data can be transferred. */
int channel_wait_request(struct channel *channel)
{
    int error = wait_status(channel, STATUS_BUSY, 0);
    if (error)
        return error;
    uint8_t status = alternate_status(channel);
    error = check(status);
    return error ? error : status & STATUS_REQUEST ? 0 : -EIO;
}

/* Section 8.15. Interrupts are off: it works before the line is known to. */
int drive_identify(const struct drive *drive, uint16_t *words)
{
    struct command command = {.code = IDENTIFY_DEVICE};
    struct channel *channel = drive->channel;
    int error = channel_command(drive, &command);
    if (error)
        return error;
    if (channel_is_empty(channel))
        return -ENODEV;
    error = channel_wait_request(channel);
    if (error)
        return error;
    in_words(channel->base + DATA, words, 256);
    in_byte(channel->base + STATUS);
    return 0;
}
