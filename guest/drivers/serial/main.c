/* Serial lines: the driver of the 16550 (National Semiconductor, PC16550D data sheet).

   For etc/services:

service serial
    program /sbin/serial
    calls devio sdevio vdevio irqctl safecopy vcopy times log
    send-to fs pm ds
    ports 3f8-3ff 2f8-2ff
    irqs 4 3
    major 4 64 65
    priority 1

   Arguments: speed=BITS for both lines at the start.
   Major number MAJOR_TERMINAL; minor numbers 64 (COM1, /dev/ttyS0) and 65 (COM2, /dev/ttyS1). */

#include <string.h>
#include <tern/fs.h>
#include <tern/lib.h>
#include "../common/driver.h"
#include "../common/ports.h"
#include "../common/terminal.h"

/* Registers, as offsets from the first port (section 8, Table II). */
#define RBR 0 /* receiver buffer, read */
#define THR 0 /* transmitter holding, written */
#define DLL 0 /* low half of the divisor while LCR's DLAB is set */
#define DLM 1 /* high half */
#define IER 1 /* interrupt enable */
#define IIR 2 /* interrupt identification, read */
#define FCR 2 /* FIFO control, written */
#define LCR 3 /* line control */
#define MCR 4 /* modem control */
#define LSR 5 /* line status */
#define MSR 6 /* modem status */
#define SCR 7 /* scratch */

#define IER_RECEIVED 1
#define IER_EMPTY 2
#define IER_LINE_STATUS 4
#define IIR_NONE 1
#define FCR_ENABLE 0x01
#define FCR_CLEAR 0x06
#define FCR_TRIGGER_8 0x80
#define LCR_8_BITS 0x03
#define LCR_DLAB 0x80
#define MCR_DTR 0x01
#define MCR_RTS 0x02
#define MCR_OUT2 0x08 /* lets the interrupt through on a PC */
#define LSR_READY 0x01
#define LSR_ERRORS 0x1c /* parity, framing, break */
#define LSR_EMPTY 0x20
#define LSR_IDLE 0x40

#define FIFO_BYTES 16
#define SPEED_MAX 115200u
#define SPEED_MIN 50u

/* Rounds of an interrupt: a device that says for ever that there is more does not get more. */
#define ROUNDS 32
#define RECEIVE_MAX 64

/* If the interrupt of an empty FIFO does not come in this time, the driver looks itself: 16 bytes of 10 bits
   at the lowest speed take 3.2 s. */
#define LATE_MICROSECONDS 4000000u

struct uart {
    uint16_t base;
    uint32_t interrupt;
    uint32_t minor;
    int there, sending;
    int full;                    /* what comes stays in the device, which may tell the other end to wait */
    uint64_t sent_at;
    struct line line;
};

static struct uart uarts[2] = {{.base = 0x3f8, .interrupt = 4, .minor = 64},
                               {.base = 0x2f8, .interrupt = 3, .minor = 65}};

static void fill(struct uart *u)
{
    uint8_t bytes[FIFO_BYTES];
    uint32_t n = terminal_take(&u->line, bytes, FIFO_BYTES);
    u->sending = n > 0;
    if (n) {
        out_bytes(u->base + THR, bytes, n);
        u->sent_at = driver_now();
    }
}

static void output(struct line *line)
{
    struct uart *u = line->device;
    if (!u->sending && in_byte(u->base + LSR) & LSR_EMPTY) {
        fill(u);
    } else if (!u->sending) {
        /* The kernel's log uses the line too: the interrupt comes when it has room again. */
        u->sending = 1;
        u->sent_at = driver_now();
    }
}

/* While there is no room the device must not interrupt for what has come. */
static void set_full(struct uart *u, int full)
{
    if (u->full == full)
        return;
    u->full = full;
    out_byte(u->base + IER, IER_EMPTY | IER_LINE_STATUS | (full ? 0 : IER_RECEIVED));
    out_byte(u->base + MCR, MCR_OUT2 | MCR_DTR | (full ? 0 : MCR_RTS));
}

static void receive(struct uart *u)
{
    for (uint32_t i = 0; i < RECEIVE_MAX; i++) {
        set_full(u, !terminal_has_room(&u->line));
        uint8_t status = in_byte(u->base + LSR);
        if (u->full || !(status & LSR_READY))
            return;
        uint8_t byte = in_byte(u->base + RBR);
        if (!(status & LSR_ERRORS))
            terminal_input(&u->line, byte);
    }
}

static void handle(struct uart *u)
{
    for (uint32_t i = 0; i < ROUNDS; i++) {
        /* Reading it takes back the request of an empty FIFO (section 8.6). */
        uint8_t why = in_byte(u->base + IIR);
        receive(u);
        if (u->sending && in_byte(u->base + LSR) & LSR_EMPTY)
            fill(u);
        if (why & IIR_NONE)
            break;
        if ((why & 0x0e) == 0)
            in_byte(u->base + MSR);
    }
    interrupt_enable(u->interrupt);
}

static void interrupt(uint32_t lines)
{
    for (uint32_t i = 0; i < 2; i++)
        if (uarts[i].there && lines & 1u << uarts[i].interrupt)
            handle(&uarts[i]);
}

static void set_speed(struct uart *u, uint32_t speed)
{
    uint32_t divisor = SPEED_MAX / speed;
    out_byte(u->base + LCR, LCR_8_BITS | LCR_DLAB);
    out_byte(u->base + DLL, (uint8_t)divisor);
    out_byte(u->base + DLM, (uint8_t)(divisor >> 8));
    out_byte(u->base + LCR, LCR_8_BITS);
}

static int set(struct line *line, const struct terminal *settings)
{
    struct uart *u = line->device;
    if (settings->speed < SPEED_MIN || settings->speed > SPEED_MAX)
        return -EINVAL;
    if (settings->speed == line->settings.speed)
        return 0;
    /* What is in the FIFO still goes out at the old speed. */
    for (uint32_t i = 0; i < 2 * FIFO_BYTES && !(in_byte(u->base + LSR) & LSR_IDLE); i++)
        driver_pause(10 * 1000000u / line->settings.speed);
    set_speed(u, settings->speed);
    return 0;
}

static const struct terminal_driver driver = {output, set};

/* Resets the device and finds out whether it is there. */
static int reset(struct uart *u, uint32_t speed)
{
    out_byte(u->base + IER, 0);
    out_byte(u->base + SCR, 0x5a);
    if (in_byte(u->base + SCR) != 0x5a)
        return 0;
    set_speed(u, speed);
    out_byte(u->base + FCR, FCR_ENABLE | FCR_CLEAR | FCR_TRIGGER_8);
    out_byte(u->base + MCR, MCR_DTR | MCR_RTS | MCR_OUT2);
    in_byte(u->base + LSR);
    in_byte(u->base + RBR);
    in_byte(u->base + MSR);
    out_byte(u->base + IER, IER_RECEIVED | IER_EMPTY | IER_LINE_STATUS);
    return 1;
}

static void start(struct uart *u, uint32_t speed)
{
    static const struct terminal initial = {
        .flags = TERMINAL_ECHO | TERMINAL_LINES | TERMINAL_SIGNALS | TERMINAL_OUTPUT | TERMINAL_INPUT,
        .rows = 24, .columns = 80,
        .interrupt = 3, .quit = 28, .erase = 127, .kill = 21, .end = 4, .suspend = 26};
    if (!reset(u, speed))
        return;
    if (interrupt_attach(u->interrupt)) {
        log_line("serial: no right to line %u", (unsigned)u->interrupt);
        return;
    }
    u->there = 1;
    u->line.driver = &driver;
    u->line.device = u;
    u->line.minor = u->minor;
    u->line.settings = initial;
    u->line.settings.speed = speed;
    terminal_add(&u->line);
}

/* Looks after lines whose interrupt is late, and those for which a read has made room. */
static uint32_t idle(void)
{
    uint32_t limit = terminal_idle();
    for (uint32_t i = 0; i < 2; i++) {
        struct uart *u = &uarts[i];
        if (u->full)
            receive(u);
        if (!u->sending)
            continue;
        if (driver_now() - u->sent_at >= LATE_MICROSECONDS)
            handle(u);
        if (limit == 0 || limit > LATE_MICROSECONDS)
            limit = LATE_MICROSECONDS;
    }
    return limit;
}

int main(int argc, char **argv)
{
    static const struct server_request requests[] = {TERMINAL_REQUESTS, {0, NULL}};
    static const struct server server = {.requests = requests, .interrupt = interrupt};
    driver_start(argc, argv);
    uint32_t speed = driver_number("speed", SPEED_MAX);
    if (speed < SPEED_MIN || speed > SPEED_MAX)
        speed = SPEED_MAX;
    for (uint32_t i = 0; i < 2; i++)
        start(&uarts[i], speed);
    driver_run(&server, idle);
    return 0;
}
