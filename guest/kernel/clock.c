/* Time: the time-stamp counter, and a timer that interrupts when something is due. The timer is the local
   APIC's (SDM vol. 3, 11.5.4) or counter 0 of the 8254 (data sheet). It ticks at a frequency, or, in tickless
   operation, fires once for what comes next, and not at all while nothing does. */

#include "kernel.h"

#define PIT_HZ 1193182
#define PIT_COUNTER0 0x40
#define PIT_COUNTER2 0x42
#define PIT_CONTROL 0x43
#define PIT_ONCE0 0x30             /* counter 0, both bytes, mode 0 */
#define PIT_RATE0 0x34             /* counter 0, both bytes, mode 2 */
#define PIT_ONCE2 0xb0             /* counter 2, both bytes, mode 0 */
#define PIT_LOWEST_HZ 19           /* its counter has 16 bits */
#define PORT_B 0x61                /* bit 0: gate of counter 2, bit 1: speaker, bit 5: output of counter 2 */
#define CALIBRATION (PIT_HZ / 1000) /* counts: 1 ms */
#define CALIBRATIONS 8             /* at most, after the first */

#define APIC 0xfee00000u
#define APIC_EOI 0xb0
#define APIC_SPURIOUS 0xf0
#define APIC_TIMER 0x320
#define APIC_LINT0 0x350
#define APIC_LINT1 0x360
#define APIC_INITIAL 0x380
#define APIC_CURRENT 0x390
#define APIC_DIVIDE 0x3e0
#define APIC_ON 0x1ffu             /* with vector 255 for spurious interrupts */
#define MASKED 0x10000u
#define PERIODIC 0x20000u
#define TIMER_VECTOR 96
#define EXTINT 0x700u
#define NMI 0x400u
#define DIVIDE_BY_16 3
#define HAS_APIC (1u << 9)         /* of CPUID.1:EDX */
#define LONGEST 1000000u           /* microseconds that the timer is set for at once */

uint32_t clock_source = CLOCK_TICKLESS, clock_hz, clock_ticks, tsc_khz;

static uint64_t origin;            /* of the time-stamp counter */
static uint32_t per_count;         /* 2^32 microseconds for each count of it */
static uint32_t apic_khz;          /* after division; 0: there is none */
static uint64_t due;               /* the earliest of what is due; 0: nothing */
static uint64_t armed;             /* when the timer fires, in tickless operation; 0: never */
static uint32_t pit_divider, pit_phase; /* interrupts of the 8254 for each tick */

extern uint32_t kernel_directory[];

static volatile uint32_t *apic(uint32_t offset)
{
    return (volatile uint32_t *)(APIC + offset);
}

static uint64_t to_microseconds(uint64_t counts)
{
    uint32_t low = (uint32_t)counts, high = (uint32_t)(counts >> 32);

    return (uint64_t)high * per_count + ((uint64_t)low * per_count >> 32);
}

uint64_t now(void)
{
    return to_microseconds(tsc() - origin);
}

/* Returns the counts of the time-stamp counter, and in *timer those of the local APIC's timer, in the time in
   which counter 2 of the 8254 counts to its end. */
static uint32_t measure(int has_apic, uint32_t *timer)
{
    uint64_t begin;
    uint32_t counts;

    if (has_apic) {
        *apic(APIC_SPURIOUS) = APIC_ON;
        *apic(APIC_LINT0) = EXTINT;
        *apic(APIC_LINT1) = NMI;
        *apic(APIC_TIMER) = MASKED | TIMER_VECTOR;
        *apic(APIC_DIVIDE) = DIVIDE_BY_16;
    }
    out8(PORT_B, (in8(PORT_B) & ~3) | 1);
    out8(PIT_CONTROL, PIT_ONCE2);
    out8(PIT_COUNTER2, CALIBRATION & 0xff);
    out8(PIT_COUNTER2, CALIBRATION >> 8);
    begin = tsc();
    if (has_apic)
        *apic(APIC_INITIAL) = ~0u;
    while (!(in8(PORT_B) & 0x20) && tsc() - begin < 1u << 31)
        ;
    counts = (uint32_t)(tsc() - begin);
    *timer = has_apic ? ~*apic(APIC_CURRENT) : 0;
    return counts;
}

/* Measures the time-stamp counter, and the timer of the local APIC. Beneath an emulator whose host is busy, time
   may jump in a measurement, which then has too many counts. So two must agree, or the shortest one counts. */
static void calibrate(int has_apic)
{
    uint32_t timer, counts = measure(has_apic, &timer);

    for (int i = 0, agree = 0; i < CALIBRATIONS && !agree; i++) {
        uint32_t timer_again, again = measure(has_apic, &timer_again);
        uint32_t least = again < counts ? again : counts, most = again < counts ? counts : again;
        agree = most - least <= least / 8;
        timer = again < counts ? timer_again : timer;
        counts = least;
    }
    tsc_khz = (uint32_t)((uint64_t)counts * PIT_HZ / CALIBRATION / 1000);
    if (tsc_khz < 1000)
        tsc_khz = 1000;
    if (has_apic) {
        apic_khz = (uint32_t)((uint64_t)timer * PIT_HZ / CALIBRATION / 1000);
        *apic(APIC_INITIAL) = 0;
    }
    per_count = (uint32_t)((1000ull << 32) / tsc_khz);
    if (tsc_khz == 1000)
        per_count = ~0u;
}

void clock_start(void)
{
    uint32_t a = 1, b, c, features;

    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(features));
    /* A page of 4 MiB with the local APIC's registers, uncached, at their own address. */
    kernel_directory[APIC >> 22] = (APIC & 0xffc00000) | 0x19b;
    calibrate(features & HAS_APIC);
    origin = tsc();
    clock_set(CLOCK_TICKLESS, 0);
}

static void pit_set(uint8_t control, uint32_t counts)
{
    out8(PIT_CONTROL, control);
    out8(PIT_COUNTER0, (uint8_t)counts);
    out8(PIT_COUNTER0, (uint8_t)(counts >> 8));
}

static void stop_timers(void)
{
    if (apic_khz != 0)
        *apic(APIC_INITIAL) = 0;
    line_mask(0, 1);
    armed = 0;
}

int clock_set(uint32_t source, uint32_t hz)
{
    if (source < CLOCK_PIT || source > CLOCK_TICKLESS || (source != CLOCK_TICKLESS && (hz < 1 || hz > 10000)))
        return -EINVAL;
    if (source == CLOCK_APIC && apic_khz == 0)
        return -ENODEV;
    stop_timers();
    clock_source = source;
    clock_hz = source == CLOCK_TICKLESS ? 0 : hz;
    if (apic_khz != 0)
        *apic(APIC_TIMER) = TIMER_VECTOR | (source == CLOCK_APIC ? PERIODIC : 0);
    if (source == CLOCK_APIC)
        *apic(APIC_INITIAL) = apic_khz * 1000 / hz;
    if (source == CLOCK_PIT) {
        pit_divider = hz < PIT_LOWEST_HZ ? (PIT_LOWEST_HZ + hz - 1) / hz : 1;
        pit_phase = 0;
        pit_set(PIT_RATE0, (PIT_HZ + hz * pit_divider / 2) / (hz * pit_divider));
        line_mask(0, 0);
    }
    return 0;
}

/* Makes the timer fire at `when`, or earlier if that is far away: it is then set again. */
static void arm(uint64_t when)
{
    uint64_t time = now();
    uint32_t wait = when <= time ? 1 : when - time > LONGEST && apic_khz == 0 ? LONGEST : 0;

    if (wait == 0)
        wait = when - time > 0xffffff ? 0xffffff : (uint32_t)(when - time);
    if (apic_khz != 0) {
        uint64_t counts = (uint64_t)wait * apic_khz / 1000 + 1;
        *apic(APIC_INITIAL) = counts >> 32 != 0 ? ~0u : (uint32_t)counts;
    } else {
        uint64_t counts = (uint64_t)wait * PIT_HZ / 1000000 + 1;
        pit_set(PIT_ONCE0, counts > 0xffff ? 0xffff : (uint32_t)counts);
        line_mask(0, 0);
    }
    armed = when;
}

void clock_expect(uint64_t when)
{
    if (when != 0 && (due == 0 || when < due))
        due = when;
}

void clock_plan(void)
{
    uint64_t next = due, quantum;

    if (clock_source != CLOCK_TICKLESS)
        return;
    quantum = quantum_end();
    if (quantum != 0) {
        quantum = to_microseconds(quantum - origin);
        if (next == 0 || quantum < next)
            next = quantum;
    }
    /* A timer that fires too early costs less than setting it anew at each change. */
    if (next != 0 && (armed == 0 || next < armed))
        arm(next);
}

/* Ends the waits and rings the alarms whose time has come. */
static void expire(void)
{
    uint64_t time = now();

    if (due == 0 || time < due)
        return;
    due = 0;
    for (struct process *process = processes + FIRST_SLOT; process < processes + SLOTS; process++) {
        if (process->endpoint == NONE)
            continue;
        if (process->deadline != 0 && process->deadline <= time)
            end_wait(process, -ETIMEDOUT);
        if (process->alarm != 0 && process->alarm <= time) {
            /* Those that were missed are not made up for. */
            process->alarm += process->alarm_period;
            if (process->alarm <= time)
                process->alarm = process->alarm_period == 0 ? 0 : time + process->alarm_period;
            notify(CLOCK, process);
        }
        clock_expect(process->deadline);
        clock_expect(process->alarm);
    }
}

void clock_interrupt(void)
{
    if (clock_source == CLOCK_APIC || (clock_source == CLOCK_TICKLESS && apic_khz != 0))
        *apic(APIC_EOI) = 0;
    if (clock_source == CLOCK_PIT && ++pit_phase < pit_divider)
        return;
    pit_phase = 0;
    clock_ticks++;
    armed = 0;
    expire();
}
