/* Ticks of a timer: whether all of them come, and how far apart they are.
 *
 *   ticks SOURCE HZ COUNT WORK CLOCK    SOURCE is pit, rtc or apic, WORK is idle or busy, CLOCK is own or host
 *
 * The ticks between the first and the last one are counted, and the time between these is taken by the ACPI PM
 * timer, which does not depend on interrupts. Distances are taken by the time-stamp counter, or by that of the host,
 * which a guest tool of ring3 reads, in 64ths of a period. Prints names with numbers, and each distance that has
 * occurred with its count. */

#include "exits.h"

#define PIT_HZ 1193182u
#define RTC_HZ 32768u
#define PM_HZ 3579545u
#define MEGAHERTZ 1000000u

#define PIT 0x40
#define PIT_CONTROL 0x43
#define CMOS 0x70
#define PM_TIMER 0x608
#define MASKS 0x21
#define OTHER_MASKS 0xa1
#define PIT_VECTOR 0x20
#define RTC_VECTOR 0x28
#define PERIODIC 0x20000
#define MASKED 0x10000

/* A period has so many parts; the last distance stands for all longer ones. */
#define PARTS 64
#define DISTANCES (4 * PARTS)

struct frame;

/* A source of ticks: the frequency that it divides, and by what. */
struct source {
    const char *name;
    uint32_t (*start)(uint32_t hz);
    void (*stop)(void);
    uint32_t frequency;
};

static volatile uint32_t ticks;
static uint32_t wanted, distances[DISTANCES], shortest, longest, part, pm_last, pm_passed, cycles_last;
/* Cycles of the local APIC's timer in a second. */
static uint32_t apic_hz;

static int by_host;

static uint32_t cycles(void) {
    uint32_t low, high, ecx = 0, ebx = 0;
    if (by_host) {
        /* "QEMU", "time" */
        low = 0x554d4551;
        high = 0x656d6974;
        __asm__ volatile("stc; cpuid" : "+a"(low), "+d"(high), "+c"(ecx), "+b"(ebx));
    } else {
        __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    }
    return low;
}

/* a * b / c, which must fit. */
static uint32_t scaled(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t low, high;
    __asm__("mull %3; divl %4" : "=&a"(low), "=&d"(high) : "0"(a), "rm"(b), "rm"(c) : "cc");
    return low;
}

/* The PM timer has 24 bits, which last for 4.6 s. */
static uint32_t pm_since(uint32_t before) {
    return (in32(PM_TIMER) - before) & 0xffffff;
}

/* The first tick begins the measurement. */
static void note(void) {
    uint32_t now = cycles(), distance = now - cycles_last, passed = pm_since(pm_last);
    cycles_last = now;
    pm_last = (pm_last + passed) & 0xffffff;
    if (ticks > wanted)
        return;
    if (ticks++ == 0)
        return;
    pm_passed += passed;
    if (distance < shortest)
        shortest = distance;
    if (distance > longest)
        longest = distance;
    distance = (distance + part / 2) / part;
    distances[distance < DISTANCES ? distance : DISTANCES - 1]++;
}

static uint8_t read_cmos(uint8_t reg) {
    out8(CMOS, reg);
    return in8(CMOS + 1);
}

static void write_cmos(uint8_t reg, uint8_t value) {
    out8(CMOS, reg);
    out8(CMOS + 1, value);
}

__attribute__((interrupt)) static void pit_tick(struct frame *frame) {
    (void)frame;
    note();
    out8(0x20, 0x20);
}

/* Register C says that this tick is over. */
__attribute__((interrupt)) static void rtc_tick(struct frame *frame) {
    (void)frame;
    note();
    read_cmos(0xc);
    out8(0xa0, 0x20);
    out8(0x20, 0x20);
}

__attribute__((interrupt)) static void apic_tick(struct frame *frame) {
    (void)frame;
    note();
    write_apic(0xb0, 0);
}

static uint32_t start_pit(uint32_t hz) {
    uint32_t divisor = PIT_HZ / hz;
    if (divisor > 0x10000)
        divisor = 0x10000;
    set_handler(PIT_VECTOR, (void (*)(void))pit_tick);
    /* Counter 0, both bytes, mode 2. */
    out8(PIT_CONTROL, 0x34);
    out8(PIT, (uint8_t)divisor);
    out8(PIT, (uint8_t)(divisor >> 8));
    out8(MASKS, 0xfe);
    return divisor;
}

static void stop_pit(void) {
    out8(MASKS, 0xff);
}

static uint32_t start_rtc(uint32_t hz) {
    uint8_t rate = 1;
    while (rate < 15 && RTC_HZ >> (rate - 1) > hz)
        rate++;
    set_handler(RTC_VECTOR, (void (*)(void))rtc_tick);
    write_cmos(0xa, (uint8_t)(read_cmos(0xa) & 0xf0) | rate);
    read_cmos(0xc);
    write_cmos(0xb, read_cmos(0xb) | 0x40);
    out8(OTHER_MASKS, 0xfe);
    out8(MASKS, 0xfb);
    return 1u << (rate - 1);
}

static void stop_rtc(void) {
    out8(MASKS, 0xff);
    out8(OTHER_MASKS, 0xff);
    write_cmos(0xb, read_cmos(0xb) & 0xbf);
    read_cmos(0xc);
}

static uint32_t start_apic(uint32_t hz) {
    set_handler(APIC_TIMER, (void (*)(void))apic_tick);
    write_apic(0x320, PERIODIC | APIC_TIMER);
    write_apic(0x380, apic_hz / hz);
    return apic_hz / hz;
}

static void stop_apic(void) {
    write_apic(0x380, 0);
    write_apic(0x320, MASKED | APIC_TIMER);
    set_handler(APIC_TIMER, end_of_interrupt);
}

/* The three clocks at one moment. */
struct moment {
    uint32_t pm, timer, cycles;
};

/* Of several looks the one that took the least time: the host may be busy with other things during the others. */
static struct moment look(void) {
    struct moment best = {0, 0, 0};
    uint32_t least = 0xffffffff;
    for (int i = 0; i < 20; i++) {
        uint32_t before = cycles();
        struct moment now;
        now.pm = in32(PM_TIMER);
        now.timer = read_apic(0x390);
        now.cycles = cycles();
        if (now.cycles - before < least) {
            least = now.cycles - before;
            best = now;
        }
    }
    return best;
}

/* Finds the frequency of the APIC's timer, a whole number of megahertz, in some 50 ms. Gives the cycles of the
   time-stamp counter in a second. */
static uint32_t calibrate(void) {
    write_apic(0x380, 0xffffffff);
    struct moment from = look();
    while (pm_since(from.pm) < PM_HZ / 20) {
    }
    struct moment to = look();
    uint32_t pm = (to.pm - from.pm) & 0xffffff;
    write_apic(0x380, 0);
    uint32_t apic = scaled(from.timer - to.timer, PM_HZ, pm);
    apic_hz = (apic + MEGAHERTZ / 2) / MEGAHERTZ * MEGAHERTZ;
    return scaled(to.cycles - from.cycles, PM_HZ, pm);
}

static void show(const char *name, uint32_t value) {
    put(name);
    put(" ");
    put_number(value);
    put("\r\n");
}

static void measure(struct source *source, uint32_t hz, uint32_t count, int is_busy) {
    uint32_t cycles_in_second = calibrate();
    if (!source->frequency)
        source->frequency = apic_hz;
    for (unsigned i = 0; i < DISTANCES; i++)
        distances[i] = 0;
    ticks = longest = pm_passed = 0;
    shortest = 0xffffffff;
    wanted = count;
    uint32_t divisor = source->start(hz);
    part = scaled(cycles_in_second, divisor, source->frequency) / PARTS;
    /* The first tick and COUNT more. */
    while (ticks <= wanted) {
        if (is_busy) {
            __asm__ volatile("sti");
            for (volatile int work = 0; work < 1000; work++) {
            }
            __asm__ volatile("cli");
        } else {
            __asm__ volatile("sti; hlt; cli");
        }
    }
    source->stop();
    show("came", count);
    show("frequency", source->frequency);
    show("divisor", divisor);
    show("pm-ticks", pm_passed);
    show("cycles-in-second", cycles_in_second);
    show("shortest", shortest);
    show("longest", longest);
    for (uint32_t i = 0; i < DISTANCES; i++)
        if (distances[i]) {
            put("distance ");
            put_number(i);
            show("", distances[i]);
        }
}

/* 1 if the next word is `word`, which is left behind then. */
static int next(const char **text, const char *word) {
    const char *rest;
    while (**text == ' ')
        ++*text;
    if (!begins(*text, word, &rest))
        return 0;
    *text = rest;
    return 1;
}

void count_ticks(const char *line) {
    static struct source sources[] = {
        {"pit", start_pit, stop_pit, PIT_HZ},
        {"rtc", start_rtc, stop_rtc, RTC_HZ},
        {"apic", start_apic, stop_apic, 0},
    };
    for (unsigned i = 0; i < sizeof sources / sizeof *sources; i++) {
        const char *rest = line;
        if (!next(&rest, sources[i].name))
            continue;
        uint32_t hz = number(&rest), count = number(&rest);
        if (hz && count) {
            int is_busy = next(&rest, "busy");
            next(&rest, "idle");
            by_host = next(&rest, "host");
            measure(&sources[i], hz, count, is_busy);
            return;
        }
    }
    put("ticks pit|rtc|apic HZ COUNT idle|busy own|host\r\n");
}
