/* The frame of a driver. */

#include <stdlib.h>
#include <string.h>
#include <tern/lib.h>
#include <tern/rs.h>
#include "driver.h"
#include "ports.h"

/* Whoever sends a request to a driver waits for the answer, so few of them can be here. */
#define KEPT_MAX 16
#define MILLISECOND 1000u

static int arguments;
static char **argument;
static const struct server *served;
static struct message kept[KEPT_MAX];
static uint32_t kept_used;
static uint32_t interrupted; /* lines that interrupted while the driver waited */

void driver_start(int argc, char **argv)
{
    arguments = argc;
    argument = argv;
    const char *way = driver_option("way", NULL);
    if (way && !ports_choose(way))
        log_line("%s: there is no way %s to ports", argc ? argv[0] : "driver", way);
}

/* The value of number i of the arguments with this name. */
static const char *find(const char *name, uint32_t i)
{
    uint32_t length = strlen(name);
    for (int k = 1; k < arguments; k++)
        if (strncmp(argument[k], name, length) == 0 && argument[k][length] == '=' && i-- == 0)
            return argument[k] + length + 1;
    return NULL;
}

const char *driver_option(const char *name, const char *otherwise)
{
    const char *value = find(name, 0);
    return value ? value : otherwise;
}

uint32_t driver_number(const char *name, uint32_t otherwise)
{
    const char *text = driver_option(name, NULL);
    char *end;
    if (!text)
        return otherwise;
    uint32_t value = strtoul(text, &end, 0);
    return *text && !*end ? value : otherwise;
}

/* Two hexadecimal numbers with a separator. */
static int find_pair(const char *name, uint32_t i, char separator, uint32_t *first, uint32_t *second)
{
    const char *text = find(name, i);
    char *end;
    if (!text)
        return 0;
    *first = strtoul(text, &end, 16);
    if (end == text || *end != separator)
        return 0;
    *second = strtoul(end + 1, NULL, 16);
    return 1;
}

int driver_ports(uint32_t i, uint16_t *first, uint16_t *last)
{
    uint32_t a, b;
    if (!find_pair("port", i, '-', &a, &b))
        return 0;
    *first = a;
    *last = b;
    return 1;
}

int driver_memory(uint32_t i, uint32_t *base, uint32_t *bytes)
{
    return find_pair("memory", i, ',', base, bytes);
}

int driver_line(uint32_t i, uint32_t *line)
{
    const char *text = find("irq", i);
    if (text)
        *line = strtoul(text, NULL, 10);
    return text && *line < 16;
}

static uint64_t time_stamp(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

/* The time-stamp counter tells what has passed since the kernel was last asked, which is each second. */
uint64_t driver_now(void)
{
    static struct times asked;
    uint64_t passed = time_stamp() - asked.tsc;
    if (asked.tsc_khz == 0 || passed / 1000 >= asked.tsc_khz) {
        if (sys_times(&asked) != 0)
            return 0;
        passed = 0;
    }
    return asked.microseconds + passed * 1000 / asked.tsc_khz;
}

int interrupt_attach(uint32_t line)
{
    int result = sys_irqctl(IRQ_SET, line);
    return result ? result : sys_irqctl(IRQ_ENABLE, line);
}

static int keep(struct message *m)
{
    if (m->type <= 0)
        return NO_REPLY;
    if (kept_used == KEPT_MAX)
        return -EAGAIN;
    kept[kept_used++] = *m;
    return NO_REPLY;
}

static void note(uint32_t lines)
{
    interrupted |= lines;
}

uint32_t driver_wait(uint32_t lines, uint32_t microseconds)
{
    static const struct server waiting = {.other = keep, .interrupt = note};
    uint64_t end = driver_now() + microseconds;
    for (;;) {
        uint32_t found = interrupted & lines;
        interrupted &= ~found;
        if (found)
            return found;
        uint64_t now = driver_now();
        if (now >= end)
            return 0;
        server_step(&waiting, (uint32_t)(end - now));
    }
}

void driver_pause(uint32_t microseconds)
{
    driver_wait(0, microseconds);
}

/* Handles what was kept. A request that comes meanwhile is handled after it. */
static void handle_kept(void)
{
    while (kept_used) {
        struct message m = kept[0];
        memmove(kept, kept + 1, --kept_used * sizeof *kept);
        server_handle(served, &m);
    }
    if (interrupted && served->interrupt) {
        uint32_t lines = interrupted;
        interrupted = 0;
        served->interrupt(lines);
    }
}

void driver_run(const struct server *server, uint32_t (*idle)(void))
{
    served = server;
    server_ready();
    for (uint32_t limit = 0;;) {
        handle_kept();
        if (idle)
            limit = idle();
        if (kept_used)
            continue;
        server_step(server, limit);
    }
}
