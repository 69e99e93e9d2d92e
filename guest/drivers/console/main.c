/* The console: a keyboard at an 8042, and the text screen of a VGA.

   For etc/services:

service console
    program /sbin/console
    calls mapphysical devio sdevio vdevio irqctl safecopy vcopy times log
    send-to fs pm ds
    ports 60-60 64-64 3d4-3d5
    irqs 1
    memory b8000,8000
    major 4 0 0
    priority 1

   Major number MAJOR_TERMINAL, minor number 0. */

#include <tern/fs.h>
#include <tern/lib.h>
#include "../common/driver.h"
#include "../common/ports.h"
#include "../common/terminal.h"
#include "console.h"

#define KEYBOARD_LINE 1
#define TEXT_MEMORY 0xb8000u
#define TEXT_BYTES 0x8000u

static struct line line;

static void output(struct line *l)
{
    for (int byte; (byte = terminal_next(l)) >= 0;)
        screen_write((uint8_t)byte);
}

static const struct terminal_driver driver = {output, NULL};

static void key(const char *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        terminal_input(&line, (uint8_t)bytes[i]);
}

static void interrupt(uint32_t lines)
{
    (void)lines;
    keyboard_interrupt(key);
    interrupt_enable(KEYBOARD_LINE);
}

static uint32_t idle(void)
{
    uint32_t limit = terminal_idle();
    const char *answer = screen_answer();
    if (answer)
        terminal_input_string(&line, answer);
    screen_show();
    return answer ? 1 : limit;
}

int main(int argc, char **argv)
{
    static const struct server_request requests[] = {TERMINAL_REQUESTS, {0, NULL}};
    static const struct server server = {.requests = requests, .interrupt = interrupt};
    static const struct terminal initial = {
        .flags = TERMINAL_ECHO | TERMINAL_LINES | TERMINAL_SIGNALS | TERMINAL_OUTPUT | TERMINAL_INPUT,
        .rows = SCREEN_ROWS, .columns = SCREEN_COLUMNS,
        .interrupt = 3, .quit = 28, .erase = 127, .kill = 21, .end = 4, .suspend = 26};
    uint32_t address = 0;
    driver_start(argc, argv);
    int error = sys_mapphysical(SELF, &address, TEXT_BYTES, MAP_WRITE | MAP_UNCACHED, TEXT_MEMORY);
    if (error) {
        log_line("console: the screen's memory cannot be had: %d", error);
        server_end(1);
    }
    screen_start((volatile uint16_t *)address);
    keyboard_start();
    if (interrupt_attach(KEYBOARD_LINE))
        log_line("console: no right to line %d", KEYBOARD_LINE);
    line.driver = &driver;
    line.settings = initial;
    terminal_add(&line);
    driver_run(&server, idle);
    return 0;
}
