/* NE2000 and its relatives: National Semiconductor's DP8390D ("the data sheet"), 16 KiB of memory, and a data
   port, on the ISA bus or as Realtek's RTL8029AS on the PCI bus.

   For etc/services, and the same with ports and lines for a card on the ISA bus:

service ne2000
    program /sbin/ne2000
    calls devio sdevio vdevio irqctl safecopy vcopy times log
    send-to net
    pci 10ec:8029
    pci-needed
    card
*/

#include <string.h>
#include <tern/lib.h>
#include "../common/card.h"
#include "../common/driver.h"
#include "../common/ports.h"
#include "ne2000.h"

static struct card card;
static uint16_t base;
static uint32_t line;
static uint8_t outgoing[FRAME_MAX + 1], incoming[FRAME_MAX + 1];
static uint32_t held_bytes;    /* of `incoming`; 0: it is free */
static uint8_t held_next;      /* the page behind the frame that it was copied from */
static int sending;

static void command(uint8_t value)
{
    out_byte(base + CR, value);
}

/* Waits until bits of ISR are set, and clears them. A device that never sets them does not hold the driver
   up. */
static int wait_for(uint8_t bits, uint32_t microseconds)
{
    for (uint64_t end = driver_now() + microseconds;;) {
        if (in_byte(base + ISR) & bits) {
            out_byte(base + ISR, bits);
            return 0;
        }
        if (driver_now() >= end)
            return -ETIMEDOUT;
    }
}

/* Remote DMA (section 13.0, "Remote DMA"): whole words from or to the card's memory. */
static int transfer(int direction, uint16_t at, void *bytes, uint32_t count)
{
    count = (count + 1) & ~1u;
    command(CR_START | CR_NO_DMA);
    out_byte(base + RBCR0, (uint8_t)count);
    out_byte(base + RBCR1, (uint8_t)(count >> 8));
    out_byte(base + RSAR0, (uint8_t)at);
    out_byte(base + RSAR1, (uint8_t)(at >> 8));
    command(CR_START | (direction == IO_IN ? CR_READ : CR_WRITE));
    if (direction == IO_IN)
        in_words(base + DATA, bytes, count / 2);
    else
        out_words(base + DATA, bytes, count / 2);
    return wait_for(ISR_RDC, DMA_MICROSECONDS);
}

/* Section 10.0, "Initialization procedures". */
static void initialize(void)
{
    command(CR_STOP | CR_NO_DMA);
    out_byte(base + DCR, DCR_WORDS);
    out_byte(base + RBCR0, 0);
    out_byte(base + RBCR1, 0);
    out_byte(base + RCR, RCR_MONITOR);
    out_byte(base + TCR, TCR_LOOPBACK);
    out_byte(base + PSTART, FIRST_PAGE);
    out_byte(base + PSTOP, END_PAGE);
    out_byte(base + BNRY, FIRST_PAGE);
    out_byte(base + ISR, 0xff);
    out_byte(base + IMR, INTERRUPTS);
    command(CR_STOP | CR_NO_DMA | CR_PAGE_1);
    for (uint16_t i = 0; i < ADDRESS_BYTES; i++)
        out_byte(base + PAR0 + i, card.address[i]);
    for (uint16_t i = 0; i < 8; i++)
        out_byte(base + MAR0 + i, 0);
    out_byte(base + CURR, FIRST_PAGE + 1);
    command(CR_START | CR_NO_DMA);
    out_byte(base + TCR, 0);
    out_byte(base + RCR, RCR_BROADCAST);
    sending = 0;
    held_bytes = 0;
}

static uint8_t current_page(void)
{
    command(CR_START | CR_NO_DMA | CR_PAGE_1);
    uint8_t page = in_byte(base + CURR);
    command(CR_START | CR_NO_DMA);
    return page;
}

static uint8_t page_after(uint8_t page)
{
    return page + 1 >= END_PAGE ? FIRST_PAGE : page + 1;
}

/* BNRY is the page before the first frame, so that a full ring differs from an empty one. */
static void set_boundary(uint8_t first)
{
    out_byte(base + BNRY, first == FIRST_PAGE ? END_PAGE - 1 : first - 1);
}

/* The ring is full (section 10.0, "Overwrite warning"). Its frames are dropped: those that wait are too
   old. */
static void overflow(void)
{
    uint8_t was_sending = in_byte(base + CR) & CR_TRANSMIT;
    command(CR_STOP | CR_NO_DMA);
    driver_pause(STOP_MICROSECONDS);
    out_byte(base + RBCR0, 0);
    out_byte(base + RBCR1, 0);
    int again = was_sending && !(in_byte(base + ISR) & (ISR_PTX | ISR_TXE));
    out_byte(base + TCR, TCR_LOOPBACK);
    command(CR_START | CR_NO_DMA);
    set_boundary(current_page());
    held_bytes = 0;
    out_byte(base + ISR, ISR_OVW);
    out_byte(base + TCR, 0);
    if (again)
        command(CR_START | CR_NO_DMA | CR_TRANSMIT);
}

static uint8_t *room(void)
{
    return sending ? NULL : outgoing;
}

static int send(uint32_t bytes)
{
    if (bytes < SHORTEST) {
        memset(outgoing + bytes, 0, SHORTEST - bytes);
        bytes = SHORTEST;
    }
    int error = transfer(IO_OUT, SEND_PAGE << 8, outgoing, bytes);
    if (error) {
        initialize();
        return error;
    }
    out_byte(base + TPSR, SEND_PAGE);
    out_byte(base + TBCR0, (uint8_t)bytes);
    out_byte(base + TBCR1, (uint8_t)(bytes >> 8));
    command(CR_START | CR_NO_DMA | CR_TRANSMIT);
    sending = 1;
    return 0;
}

/* Reads the first frame of the ring. Returns its bytes, 0 if there is none, or a negative error if the ring
   makes no sense (section 7.0, "Packet reception"). */
static int read_frame(void)
{
    uint8_t header[4];
    uint8_t first = page_after(in_byte(base + BNRY)), end = current_page();
    if (first == end)
        return 0;
    if (first < FIRST_PAGE || first >= END_PAGE || transfer(IO_IN, first << 8, header, sizeof header))
        return -EIO;
    uint32_t bytes = header[2] | header[3] << 8;
    if (header[1] < FIRST_PAGE || header[1] >= END_PAGE || bytes < sizeof header + FRAME_MIN)
        return -EIO;
    bytes -= sizeof header;
    if (bytes > FRAME_MAX + CHECK_BYTES)
        return -EIO;
    /* Some cards count the check sequence, and some do not. */
    if (bytes > FRAME_MAX)
        bytes = FRAME_MAX;
    held_next = header[1];
    return transfer(IO_IN, (first << 8) + sizeof header, incoming, bytes) ? -EIO : (int)bytes;
}

static const uint8_t *received(uint32_t *bytes)
{
    if (!held_bytes) {
        int result = read_frame();
        if (result < 0) {
            log_line("ne2000: the card has lost track of its frames");
            initialize();
        }
        held_bytes = result > 0 ? (uint32_t)result : 0;
    }
    *bytes = held_bytes;
    return held_bytes ? incoming : NULL;
}

static void release(void)
{
    if (held_bytes)
        set_boundary(held_next);
    held_bytes = 0;
}

static void interrupt(uint32_t lines)
{
    (void)lines;
    for (int i = 0; i < ROUNDS; i++) {
        uint8_t why = in_byte(base + ISR) & INTERRUPTS;
        if (!why)
            break;
        if (why & ISR_OVW) {
            overflow();
            continue;
        }
        out_byte(base + ISR, why);
        if (why & (ISR_PTX | ISR_TXE)) {
            sending = 0;
            card_has_room();
        }
        if (why & (ISR_PRX | ISR_RXE))
            card_has_frames();
        if (why & ISR_CNT)
            for (uint16_t counter = CNTR0; counter < CNTR0 + 3; counter++)
                in_byte(base + counter);
    }
    interrupt_enable(line);
}

/* Resets the card, and reads its address and the mark of an NE2000 from its PROM, which has each byte
   twice. */
static int find(void)
{
    uint8_t prom[PROM_BYTES];
    uint16_t last;
    if (!driver_ports(0, &base, &last) || !driver_line(0, &line) || in_byte(base + CR) == 0xff)
        return -ENODEV;
    out_byte(base + RESET, in_byte(base + RESET));
    if (wait_for(ISR_RST, RESET_MICROSECONDS))
        return -ENODEV;
    command(CR_STOP | CR_NO_DMA);
    out_byte(base + DCR, DCR_WORDS);
    out_byte(base + RCR, RCR_MONITOR);
    out_byte(base + TCR, TCR_LOOPBACK);
    out_byte(base + PSTOP, END_PAGE);
    if (transfer(IO_IN, 0, prom, PROM_BYTES) || prom[28] != 'W' || prom[30] != 'W')
        return -ENODEV;
    for (int i = 0; i < ADDRESS_BYTES; i++)
        card.address[i] = prom[2 * i];
    return interrupt_attach(line);
}

int main(int argc, char **argv)
{
    static const struct server_request requests[] = {CARD_REQUESTS, {0, NULL}};
    static const struct server server = {.requests = requests, .interrupt = interrupt};
    driver_start(argc, argv);
    int error = find();
    if (error) {
        log_line("ne2000: there is no card: %d", error);
        server_end(1);
    }
    initialize();
    card.room = room;
    card.send = send;
    card.received = received;
    card.release = release;
    card_start(&card);
    driver_run(&server, NULL);
    return 0;
}
