/* Measures what an access to ports costs by the way that was chosen for this start (tern/hal.h). It drives no
   device: at its ports there is none, so that nearly all of the time is the way's.

   For etc/services:

service hal
    program /sbin/hal
    calls devio sdevio vdevio safecopy times log
    send-to fs
    ports 240-247
    major 14
    period 10000
    on-failure leave
    by-hand

   A line "ACCESS COUNT" that is written to /dev/hal has this access done so often, after some that do not
   count. Then a read gives "ACCESS COUNT CYCLES", the cycles of the time-stamp counter for all of them; in
   their place is "-" if this way has no such access. "behind 1" reads the port behind its own, and "across 1" a
   word of which that is a half; the reincarnation server ends the driver for either. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/lib.h>
#include "../common/character.h"
#include "../common/driver.h"
#include "../common/ports.h"

#define ELEMENTS 512         /* of a string: a sector as bytes */
#define VECTOR 16            /* entries */
#define WARMING 16           /* accesses that do not count: caches and translators get to know the code */
#define ELEMENTS_MAX 4000000 /* of one run, so that pings are answered */
#define NO_CALL 255          /* no kernel call has this number */

static uint16_t port, behind;
static uint8_t elements[4 * ELEMENTS];
static struct port_access vector[VECTOR];
static int by_message, by_direct_call;

static char answer[64];
static uint32_t unread; /* bytes of it */

static uint64_t tsc(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

/* The way itself, with nothing to do behind the kernel's door: a number that is no kernel call, or the direct
   call for this purpose. The other ways have no door without an access. */
static void call_nothing(void)
{
    struct message m = {.w = {0}};
    uint32_t value = 0;
    if (by_message)
        call(SYSTEM, NO_CALL, &m);
    else
        hal_call(HAL_NOTHING, 0, &value, NULL);
}

static void loop(void) { __asm__ volatile(""); }
static void read_byte(void) { in_byte(port); }
static void read_word(void) { in_word(port); }
static void read_double(void) { in_double(port); }
static void write_byte(void) { out_byte(port, 0); }
static void write_word(void) { out_word(port, 0); }
static void write_double(void) { out_double(port, 0); }
static void read_bytes(void) { in_bytes(port, elements, ELEMENTS); }
static void read_words(void) { in_words(port, elements, ELEMENTS); }
static void read_doubles(void) { in_doubles(port, elements, ELEMENTS); }
static void write_bytes(void) { out_bytes(port, elements, ELEMENTS); }
static void write_words(void) { out_words(port, elements, ELEMENTS); }
static void write_doubles(void) { out_doubles(port, elements, ELEMENTS); }
static void access_vector(void) { port_vector(vector, VECTOR); }
static void read_behind(void) { in_byte(behind); }
static void read_across(void) { in_word(behind - 1); }

static const struct access {
    const char *name;
    void (*perform)(void);
    uint32_t elements;
} accesses[] = {
    {"loop", loop, 1}, {"nothing", call_nothing, 1},
    {"in8", read_byte, 1}, {"in16", read_word, 1}, {"in32", read_double, 1},
    {"out8", write_byte, 1}, {"out16", write_word, 1}, {"out32", write_double, 1},
    {"ins8", read_bytes, ELEMENTS}, {"ins16", read_words, ELEMENTS}, {"ins32", read_doubles, ELEMENTS},
    {"outs8", write_bytes, ELEMENTS}, {"outs16", write_words, ELEMENTS}, {"outs32", write_doubles, ELEMENTS},
    {"vector", access_vector, VECTOR}, {"behind", read_behind, 1}, {"across", read_across, 1},
};

static const struct access *find(const char *name)
{
    for (uint32_t i = 0; i < sizeof accesses / sizeof *accesses; i++)
        if (strcmp(accesses[i].name, name) == 0)
            return &accesses[i];
    return NULL;
}

static uint32_t measure(const struct access *access, uint32_t count)
{
    for (uint32_t i = 0; i < WARMING; i++)
        access->perform();
    uint64_t before = tsc();
    for (uint32_t i = 0; i < count; i++)
        access->perform();
    return (uint32_t)(tsc() - before);
}

/* Obeys a line, without its end. */
static int obey(char *line)
{
    char *space = strchr(line, ' '), *end;
    if (!space)
        return -EINVAL;
    *space = 0;
    const struct access *access = find(line);
    uint32_t count = strtoul(space + 1, &end, 10);
    if (!access || end == space + 1 || *end || count > ELEMENTS_MAX / access->elements)
        return -EINVAL;
    if (access->perform == call_nothing && !by_message && !by_direct_call)
        unread = snprintf(answer, sizeof answer, "%s %u -\n", line, (unsigned)count);
    else
        unread = snprintf(answer, sizeof answer, "%s %u %u\n", line, (unsigned)count,
                          (unsigned)measure(access, count));
    return 0;
}

static int32_t write_line(const struct message *m)
{
    char line[32];
    uint32_t bytes = m->w[3];
    if (bytes >= sizeof line)
        return -EINVAL;
    int error = sys_safecopy(m->source, m->w[2], 0, line, bytes, GRANT_READ);
    if (error)
        return error;
    line[bytes] = 0;
    line[strcspn(line, "\n")] = 0;
    error = obey(line);
    return error ? error : (int32_t)bytes;
}

static int32_t read_answer(const struct message *m)
{
    uint32_t bytes = unread < m->w[3] ? unread : m->w[3];
    int error = bytes ? sys_safecopy(m->source, m->w[2], 0, answer, bytes, GRANT_WRITE) : 0;
    unread = 0;
    return error ? error : (int32_t)bytes;
}

static int32_t perform(const struct message *m)
{
    switch (m->type) {
    case DEVICE_READ:
        return read_answer(m);
    case DEVICE_WRITE:
        return write_line(m);
    case DEVICE_IOCTL:
        return -ENOTTY;
    case DEVICE_SELECT:
        return m->w[2] & 3; /* nothing has to be waited for */
    default:
        return 0;
    }
}

static int request(struct message *m)
{
    character_reply(m->source, m->w[0], perform(m));
    return NO_REPLY;
}

/* All requests are answered at once: none is left to be cancelled. */
static int cancel(struct message *m)
{
    (void)m;
    return NO_REPLY;
}

int main(int argc, char **argv)
{
    static const struct server_request requests[] = {
        {DEVICE_OPEN, request},   {DEVICE_CLOSE, request}, {DEVICE_READ, request},    {DEVICE_WRITE, request},
        {DEVICE_IOCTL, request},  {DEVICE_CANCEL, cancel}, {DEVICE_SELECT, request},  {0, NULL}};
    static const struct server server = {.requests = requests};
    uint16_t last;

    driver_start(argc, argv);
    const char *way = driver_option("way", "message");
    by_message = strcmp(way, "message") == 0;
    by_direct_call = strcmp(way, "direct") == 0;
    if (!driver_ports(0, &port, &last) || last == 0xffff) {
        log_line("no ports are given");
        return 1;
    }
    behind = last + 1;
    for (uint32_t i = 0; i < VECTOR; i++)
        vector[i] = (struct port_access){IO_IN, 1, port, 0};
    driver_run(&server, character_retry);
    return 0;
}
