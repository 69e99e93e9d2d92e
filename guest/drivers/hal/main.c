/* Measures what an access to ports costs by the way that was chosen for this start (tern/hal.h), in cycles of
   the time-stamp counter. It drives no device: at its ports there is none, so that nearly all of the time is
   the way's.

   Each result is a line of the kernel's log: way, access, minimum, median and maximum of the samples, in
   cycles for each access. Then it tries a port behind its own, and the reincarnation server ends it for that.

   For etc/services:

service hal
    program /sbin/hal
    calls devio sdevio vdevio times log
    ports 240-247
    on-failure leave
    by-hand

   Argument: samples=NUMBER of each access. */

#include <tern/lib.h>
#include "../common/driver.h"
#include "../common/ports.h"

#define SAMPLES_MAX 101
#define ACCESSES 64   /* of a sample, which hide what reading the counter costs */
#define LONG 2        /* of a sample, if each is a string */
#define WARMING 8     /* samples that do not count */
#define ELEMENTS 512  /* of a string: a sector as bytes */
#define VECTOR 16     /* entries */

static uint16_t port;
static uint8_t elements[4 * ELEMENTS];
static struct port_access vector[VECTOR];

static uint64_t tsc(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

static void nothing(void) { __asm__ volatile(""); }
static void read_byte(void) { in_byte(port); }
static void read_word(void) { in_word(port); }
static void read_double(void) { in_double(port); }
static void write_byte(void) { out_byte(port, 0); }
static void write_word(void) { out_word(port, 0); }
static void write_double(void) { out_double(port, 0); }
static void read_bytes(void) { in_bytes(port, elements, ELEMENTS); }
static void read_words(void) { in_words(port, elements, ELEMENTS); }
static void read_doubles(void) { in_doubles(port, elements, ELEMENTS); }
static void write_words(void) { out_words(port, elements, ELEMENTS); }
static void access_vector(void) { port_vector(vector, VECTOR); }

static const struct {
    const char *name;
    void (*access)(void);
    uint32_t times;   /* of a sample */
} kinds[] = {
    {"nothing", nothing, ACCESSES},
    {"in 8", read_byte, ACCESSES}, {"in 16", read_word, ACCESSES}, {"in 32", read_double, ACCESSES},
    {"out 8", write_byte, ACCESSES}, {"out 16", write_word, ACCESSES}, {"out 32", write_double, ACCESSES},
    {"string in 512*8", read_bytes, LONG}, {"string in 512*16", read_words, LONG},
    {"string in 512*32", read_doubles, LONG}, {"string out 512*16", write_words, LONG},
    {"vector in 16*8", access_vector, ACCESSES},
};

static void sort(uint32_t *values, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t k = i; k > 0 && values[k - 1] > values[k]; k--) {
            uint32_t value = values[k];
            values[k] = values[k - 1];
            values[k - 1] = value;
        }
}

/* The cycles of one access, from a sample of several. */
static uint32_t sample(uint32_t kind)
{
    uint64_t before = tsc();
    for (uint32_t i = 0; i < kinds[kind].times; i++)
        kinds[kind].access();
    return (uint32_t)(tsc() - before) / kinds[kind].times;
}

static void measure(const char *way, uint32_t samples)
{
    uint32_t taken[SAMPLES_MAX];
    for (uint32_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        /* Caches and translators get to know the code. */
        for (int i = 0; i < WARMING; i++)
            sample(kind);
        for (uint32_t i = 0; i < samples; i++)
            taken[i] = sample(kind);
        sort(taken, samples);
        log_line("%s, %s: %u %u %u cycles", way, kinds[kind].name, (unsigned)taken[0],
                 (unsigned)taken[samples / 2], (unsigned)taken[samples - 1]);
    }
}

int main(int argc, char **argv)
{
    static const struct server_request requests[] = {{0, NULL}};
    static const struct server server = {.requests = requests};
    uint16_t last;
    uint32_t samples;

    driver_start(argc, argv);
    const char *way = driver_option("way", "message");
    samples = driver_number("samples", 21);
    if (!driver_ports(0, &port, &last) || last == 0xffff) {
        log_line("no ports are given");
        return 1;
    }
    if (samples < 1 || samples > SAMPLES_MAX)
        samples = SAMPLES_MAX;
    for (uint32_t i = 0; i < VECTOR; i++)
        vector[i] = (struct port_access){IO_IN, 1, port, 0};
    measure(way, samples);
    log_line("%s: %u of its own accesses were refused", way, (unsigned)port_failures);
    in_byte(last + 1);
    driver_run(&server, NULL);
    return 0;
}
