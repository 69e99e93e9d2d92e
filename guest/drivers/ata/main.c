/* Hard disks at the PC's two ATA channels.

   For etc/services:

service ata
    program /sbin/ata
    calls map devio sdevio vdevio irqctl safecopy vcopy times log
    send-to fs
    ports 1f0-1f7 3f6-3f6 170-177 376-376
    irqs 14 15
    pci class 1 1
    major 3 0 255

   Arguments: dma=off.
   Minor numbers: drive * 64 + partition; the drives are master and slave of the first channel, then of the
   second. */

#include <string.h>
#include <tern/lib.h>
#include "../common/block.h"
#include "../common/driver.h"
#include "../common/ports.h"
#include "ata.h"

#define MINORS 64
#define BUFFER_SECTORS 128
#define TRIES 3
#define SMALL_SECTORS 0x10000000u /* how many the 28-bit commands can reach */
#define MULTIPLE_MAX 16

static struct channel channels[CHANNELS] = {{.base = 0x1f0, .control = 0x3f6, .line = 14},
                                            {.base = 0x170, .control = 0x376, .line = 15}};
static struct drive drives[DRIVES];
static struct disk disks[DRIVES];
static struct block_driver driver;

static struct command make_command(const struct drive *drive, uint8_t narrow, uint8_t wide, uint64_t sector,
                                   uint32_t sectors)
{
    struct command command = {.code = narrow, .sector = sector, .sectors = sectors};
    if (drive->wide && sector + sectors > SMALL_SECTORS) {
        command.code = wide;
        command.wide = 1;
    }
    return command;
}

static int pio_read(const struct drive *drive, uint64_t sector, uint32_t sectors)
{
    struct channel *channel = drive->channel;
    int blocks = drive->multiple > 1;
    struct command command = make_command(drive, blocks ? READ_MULTIPLE : READ_SECTORS,
                                          blocks ? READ_MULTIPLE_EXT : READ_SECTORS_EXT, sector, sectors);
    uint8_t *to = driver.buffer, status;
    int error = channel_command(drive, &command);
    while (!error && sectors) {
        uint32_t block = sectors < drive->multiple ? sectors : drive->multiple;
        error = channel_wait_interrupt(channel, &status);
        if (!error && !(status & STATUS_REQUEST))
            error = -EIO;
        if (error)
            break;
        in_words(channel->base + DATA, to, block * SECTOR_BYTES / 2);
        to += block * SECTOR_BYTES;
        sectors -= block;
    }
    return error;
}

static int pio_write(const struct drive *drive, uint64_t sector, uint32_t sectors)
{
    struct channel *channel = drive->channel;
    int blocks = drive->multiple > 1;
    struct command command = make_command(drive, blocks ? WRITE_MULTIPLE : WRITE_SECTORS,
                                          blocks ? WRITE_MULTIPLE_EXT : WRITE_SECTORS_EXT, sector, sectors);
    uint8_t *from = driver.buffer, status;
    int error = channel_command(drive, &command);
    while (!error && sectors) {
        uint32_t block = sectors < drive->multiple ? sectors : drive->multiple;
        error = channel_wait_request(channel);
        if (error)
            break;
        out_words(channel->base + DATA, from, block * SECTOR_BYTES / 2);
        from += block * SECTOR_BYTES;
        sectors -= block;
        error = channel_wait_interrupt(channel, &status);
    }
    return error;
}

static int transfer_once(const struct drive *drive, uint64_t sector, uint32_t sectors, int to_disk)
{
    if (drive->dma) {
        struct command command = make_command(drive, to_disk ? WRITE_DMA : READ_DMA,
                                              to_disk ? WRITE_DMA_EXT : READ_DMA_EXT, sector, sectors);
        return dma_transfer(drive, &command, to_disk);
    }
    return to_disk ? pio_write(drive, sector, sectors) : pio_read(drive, sector, sectors);
}

static void set_multiple(struct drive *drive, uint32_t sectors)
{
    struct command command = {.code = SET_MULTIPLE_MODE, .sectors = sectors};
    uint8_t status;
    drive->multiple = 1;
    if (sectors > 1 && channel_command(drive, &command) == 0 &&
        channel_wait_interrupt(drive->channel, &status) == 0)
        drive->multiple = sectors;
}

/* A reset, after which all drives of the channel are set as they were. */
static void recover(struct channel *channel)
{
    channel_reset(channel);
    channel_interrupts(channel, 1);
    for (uint32_t i = 0; i < DRIVES; i++)
        if (drives[i].there && drives[i].channel == channel)
            set_multiple(&drives[i], drives[i].multiple);
}

static int transfer(struct disk *disk, uint64_t sector, uint32_t sectors, int to_disk)
{
    struct drive *drive = disk->device;
    int error = -EIO;
    for (int try = 0; try < TRIES && error; try++) {
        error = transfer_once(drive, sector, sectors, to_disk);
        if (!error)
            return 0;
        log_line("ata: drive %d: %s of %u sectors at %u failed: status %x, error %x", (int)(drive - drives),
                 to_disk ? "write" : "read", (unsigned)sectors, (unsigned)sector,
                 in_byte(drive->channel->control), in_byte(drive->channel->base + ERROR));
        recover(drive->channel);
        /* A bus master that does not work is not used any more. */
        if (drive->dma && try > 0)
            drive->dma = 0;
    }
    return -EIO;
}

static int read(struct disk *disk, uint64_t sector, uint32_t sectors)
{
    return transfer(disk, sector, sectors, 0);
}

static int write(struct disk *disk, uint64_t sector, uint32_t sectors)
{
    return transfer(disk, sector, sectors, 1);
}

static int flush(struct disk *disk)
{
    struct drive *drive = disk->device;
    struct command command = {.code = drive->flush_wide ? FLUSH_CACHE_EXT : FLUSH_CACHE,
                              .wide = drive->flush_wide};
    uint8_t status;
    if (!drive->flush)
        return 0;
    for (int try = 0; try < TRIES; try++) {
        if (channel_command(drive, &command) == 0 && channel_wait_interrupt(drive->channel, &status) == 0)
            return 0;
        recover(drive->channel);
    }
    return -EIO;
}

/* An interrupt that no command waits for any more. */
static void interrupt(uint32_t lines)
{
    for (uint32_t i = 0; i < CHANNELS; i++)
        if (lines & 1u << channels[i].line) {
            in_byte(channels[i].base + STATUS);
            interrupt_enable(channels[i].line);
        }
}

/* Takes what IDENTIFY DEVICE says (section 8.15.8, by its words). */
static void take_identity(struct drive *drive, struct disk *disk, const uint16_t *words)
{
    uint32_t most = words[47] & 0xff, multiple = 1;
    int valid = (words[83] & 0xc000) == 0x4000;
    if (words[0] & 0x8000 || !(words[49] & 0x0200))
        return; /* not a disk, or one without LBA */
    drive->wide = valid && words[83] & 0x0400;
    drive->flush = valid && words[83] & 0x3000;
    drive->flush_wide = valid && words[83] & 0x2000;
    drive->dma = drive->channel->bus_master && words[49] & 0x0100;
    disk->sectors = (uint32_t)words[61] << 16 | words[60];
    if (drive->wide && (words[100] | words[101] | words[102] | words[103]))
        disk->sectors = (uint64_t)words[103] << 48 | (uint64_t)words[102] << 32 | (uint32_t)words[101] << 16 |
                        words[100];
    while (multiple * 2 <= most && multiple < MULTIPLE_MAX)
        multiple *= 2;
    drive->multiple = multiple;
    drive->there = disk->sectors != 0;
}

static int has_drives(const struct channel *channel)
{
    out_byte(channel->base + DEVICE, DEVICE_LBA | DEVICE_SECOND);
    if (!channel_is_empty(channel))
        return 1;
    out_byte(channel->base + DEVICE, DEVICE_LBA);
    return !channel_is_empty(channel);
}

static void find_drives(uint32_t number)
{
    struct channel *channel = &channels[number];
    uint16_t words[256];
    channel_interrupts(channel, 0);
    if (!has_drives(channel) || interrupt_attach(channel->line))
        return;
    channel_reset(channel);
    for (uint32_t i = 0; i < 2; i++) {
        struct drive *drive = &drives[number * 2 + i];
        drive->channel = channel;
        drive->second = i;
        disks[number * 2 + i].device = drive;
        if (drive_identify(drive, words) == 0)
            take_identity(drive, &disks[number * 2 + i], words);
    }
    recover(channel);
}

/* The bus master's sixteen ports are the PCI device's, behind the channels' own. */
static void find_bus_master(void)
{
    uint16_t first, last;
    for (uint32_t i = 0; driver_ports(i, &first, &last); i++)
        if (last - first == 15) {
            dma_find(&channels[0], first);
            dma_find(&channels[1], first + 8);
        }
}

int main(int argc, char **argv)
{
    static const struct server_request requests[] = {BLOCK_REQUESTS, {0, NULL}};
    static const struct server server = {.requests = requests, .interrupt = interrupt};
    static uint8_t own_buffer[BUFFER_SECTORS * SECTOR_BYTES];
    driver_start(argc, argv);
    driver.minors = MINORS;
    driver.buffer_sectors = BUFFER_SECTORS;
    driver.read = read;
    driver.write = write;
    driver.flush = flush;
    if (strcmp(driver_option("dma", "on"), "off") != 0)
        find_bus_master();
    driver.buffer = channels[0].bus_master ? dma_start(BUFFER_SECTORS * SECTOR_BYTES) : NULL;
    if (!driver.buffer) {
        channels[0].bus_master = channels[1].bus_master = 0;
        driver.buffer = own_buffer;
    }
    for (uint32_t i = 0; i < CHANNELS; i++)
        find_drives(i);
    block_start(&driver, disks, DRIVES);
    driver_run(&server, NULL);
    return 0;
}
