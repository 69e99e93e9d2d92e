/* Transfers by the bus master of PIIX controllers (Intel 82371SB, "PCI ISA IDE Xcelerator", section 2.7,
   and "Programming Interface for Bus Master IDE Controller", revision 1.0). */

#include <tern/lib.h>
#include "../common/block.h"
#include "../common/driver.h"
#include "../common/ports.h"
#include "ata.h"

/* Registers, as offsets from the channel's first port of the bus master. */
#define BM_COMMAND 0
#define BM_STATUS 2
#define BM_TABLE 4

#define COMMAND_START 0x01
#define COMMAND_TO_MEMORY 0x08
#define STATUS_DMA_ERROR 0x02
#define STATUS_INTERRUPT 0x04
#define STATUS_CAPABLE 0x60    /* of drives 0 and 1: what software has noted there */

/* A physical region descriptor: memory that crosses no multiple of 64 KiB. */
struct region {
    uint32_t address;
    uint16_t bytes;            /* 0: 64 KiB */
    uint16_t flags;
};

#define LAST_REGION 0x8000
#define BOUNDARY 0x10000u
#define PAGE_BYTES 4096u

static struct region *table;
static uint32_t table_physical, buffer_physical;

uint8_t *dma_start(uint32_t bytes)
{
    uint32_t address = 0, physical;
    if (sys_map(SELF, &address, PAGE_BYTES + bytes, MAP_WRITE | MAP_CONTIGUOUS, &physical))
        return NULL;
    table = (struct region *)address;
    table_physical = physical;
    buffer_physical = physical + PAGE_BYTES;
    return (uint8_t *)address + PAGE_BYTES;
}

void dma_find(struct channel *channel, uint16_t first)
{
    channel->bus_master = first;
    channel->capable = in_byte(first + BM_STATUS) & STATUS_CAPABLE;
}

/* Describes the first bytes of the buffer, cut where descriptors must be. */
static void describe(uint32_t bytes)
{
    uint32_t at = buffer_physical;
    for (uint32_t i = 0; bytes; i++) {
        uint32_t part = BOUNDARY - at % BOUNDARY;
        if (part > bytes)
            part = bytes;
        bytes -= part;
        table[i].address = at;
        table[i].bytes = (uint16_t)part;
        table[i].flags = bytes ? 0 : LAST_REGION;
        at += part;
    }
}

int dma_transfer(const struct drive *drive, const struct command *command, int to_disk)
{
    struct channel *channel = drive->channel;
    uint16_t master = channel->bus_master;
    uint8_t direction = to_disk ? 0 : COMMAND_TO_MEMORY, status;
    /* The bits are cleared by writing ones; those that say what the drives can do are kept. */
    struct port_access begin[] = {
        {IO_OUT, 1, master + BM_COMMAND, direction},
        {IO_OUT, 4, master + BM_TABLE, table_physical},
        {IO_OUT, 1, master + BM_STATUS, channel->capable | STATUS_INTERRUPT | STATUS_DMA_ERROR}};
    struct port_access end[] = {{IO_OUT, 1, master + BM_COMMAND, direction},
                                {IO_IN, 1, master + BM_STATUS, 0}};
    describe(command->sectors * SECTOR_BYTES);
    port_vector(begin, 3);
    int error = channel_command(drive, command);
    if (error)
        return error;
    out_byte(master + BM_COMMAND, direction | COMMAND_START);
    error = channel_wait_interrupt(channel, &status);
    port_vector(end, 2);
    if (!error && end[1].value & STATUS_DMA_ERROR)
        error = -EIO;
    return error;
}
