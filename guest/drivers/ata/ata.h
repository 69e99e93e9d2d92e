/* Hard disks at the two channels of a PC (ATA/ATAPI-6, T13/1410D): registers, and the parts of the driver. */

#ifndef ATA_H
#define ATA_H

#include <stdint.h>

/* Command block registers, as offsets from the channel's first port (section 7). */
#define DATA 0
#define ERROR 1
#define FEATURES 1
#define SECTOR_COUNT 2
#define LBA_LOW 3
#define LBA_MID 4
#define LBA_HIGH 5
#define DEVICE 6
#define STATUS 7
#define COMMAND 7

#define STATUS_BUSY 0x80
#define STATUS_READY 0x40
#define STATUS_FAULT 0x20
#define STATUS_REQUEST 0x08 /* data can be transferred: DRQ */
#define STATUS_ERROR 0x01

#define DEVICE_LBA 0xe0     /* with the bits that older standards want set */
#define DEVICE_SECOND 0x10

#define CONTROL_RESET 0x04
#define CONTROL_NO_INTERRUPT 0x02

/* Commands (section 8). */
#define READ_SECTORS 0x20
#define READ_SECTORS_EXT 0x24
#define READ_DMA_EXT 0x25
#define READ_MULTIPLE_EXT 0x29
#define WRITE_SECTORS 0x30
#define WRITE_SECTORS_EXT 0x34
#define WRITE_DMA_EXT 0x35
#define WRITE_MULTIPLE_EXT 0x39
#define READ_MULTIPLE 0xc4
#define WRITE_MULTIPLE 0xc5
#define SET_MULTIPLE_MODE 0xc6
#define READ_DMA 0xc8
#define WRITE_DMA 0xca
#define FLUSH_CACHE 0xe7
#define FLUSH_CACHE_EXT 0xea
#define IDENTIFY_DEVICE 0xec

#define CHANNELS 2
#define DRIVES 4

struct drive;

struct channel {
    uint16_t base, control;
    uint32_t line;
    uint16_t bus_master;       /* first port of its bus master, or 0 */
    uint8_t capable;           /* the bits of the bus master's status that stay */
    const struct drive *selected; /* the one that was selected last; NULL: not known */
};

struct drive {
    struct channel *channel;
    int second;                /* it is device 1 of its channel */
    int there, wide;           /* wide: it knows the 48-bit commands */
    int flush, flush_wide;
    int dma;
    uint32_t multiple;         /* sectors of a block of READ MULTIPLE, or 1 */
};

/* What a command is: its registers. Of 48-bit commands the registers are written twice. */
struct command {
    uint8_t code;
    int wide;
    uint64_t sector;
    uint32_t sectors;
};

/* Of channel.c. All waits are bounded. Errors are negative. */
void channel_reset(struct channel *channel);
int channel_command(const struct drive *drive, const struct command *command);
int channel_wait_interrupt(struct channel *channel, uint8_t *status);
int channel_wait_request(struct channel *channel);
void channel_interrupts(struct channel *channel, int on);
int channel_is_empty(const struct channel *channel);
int drive_select(const struct drive *drive);
int drive_identify(const struct drive *drive, uint16_t *words);

/* Of dma.c: memory for DMA, the channel's part of the bus master, which begins at port `first`, and a transfer
   between memory and disk. Without memory that the device can reach, dma_start returns NULL. */
uint8_t *dma_start(uint32_t bytes);
void dma_find(struct channel *channel, uint16_t first);
int dma_transfer(const struct drive *drive, const struct command *command, int to_disk);

#endif
