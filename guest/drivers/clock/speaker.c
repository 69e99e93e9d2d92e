/* The speaker: channel 2 of the 8254 (Intel 82C54 data sheet, "Programming the 82C54"), whose gate and output
   port 61h switches (82371SB data sheet, "NMI Status and Control Register"). */

#include <stdlib.h>
#include <string.h>
#include <tern/errno.h>
#include "../common/driver.h"
#include "../common/ports.h"
#include "clock.h"

#define CHANNEL_2 0x42
#define CONTROL 0x43
#define CONTROL_SQUARE_WAVE 0xb6 /* channel 2, both bytes, mode 3 */
#define GATE_PORT 0x61
#define GATE_ON 0x03
#define GATE_KEPT 0x0c           /* the other bits that can be written */
#define PIT_HZ 1193182u
#define HZ_MIN 19u               /* the divisor has 16 bits */
#define HZ_MAX 20000u
#define MILLISECONDS_MAX 60000u

#define NOTES_MAX 64

static struct note {
    uint32_t hz, milliseconds;   /* hz 0: a rest */
} notes[NOTES_MAX];
static uint32_t first, used;
static uint64_t ends;            /* when the current note ends, 0 if there is none */

static void sound(uint32_t hz)
{
    uint8_t gate = in_byte(GATE_PORT) & GATE_KEPT;
    if (hz) {
        uint32_t divisor = PIT_HZ / hz;
        out_byte(CONTROL, CONTROL_SQUARE_WAVE);
        out_byte(CHANNEL_2, (uint8_t)divisor);
        out_byte(CHANNEL_2, (uint8_t)(divisor >> 8));
        gate |= GATE_ON;
    }
    out_byte(GATE_PORT, gate);
}

void speaker_start(void)
{
    sound(0);
}

/* Reads a line "HZ MILLISECONDS". */
static int parse(const char *line, struct note *note)
{
    char *end;
    note->hz = strtoul(line, &end, 10);
    if (end == line)
        return 0;
    line = end;
    note->milliseconds = strtoul(line, &end, 10);
    return end != line && *end == 0 && note->milliseconds > 0 && note->milliseconds <= MILLISECONDS_MAX &&
           (note->hz == 0 || (note->hz >= HZ_MIN && note->hz <= HZ_MAX));
}

int speaker_write(const char *text, uint32_t bytes)
{
    char line[32];
    uint32_t at = 0;
    while (at < bytes) {
        const char *end = memchr(text + at, '\n', bytes - at);
        uint32_t length = end ? (uint32_t)(end - text) - at : bytes - at;
        struct note note;
        if (length >= sizeof line)
            return at ? (int)at : -EINVAL;
        memcpy(line, text + at, length);
        line[length] = 0;
        if (!parse(line, &note))
            return at ? (int)at : -EINVAL;
        if (used == NOTES_MAX)
            return at ? (int)at : -EAGAIN;
        notes[(first + used++) % NOTES_MAX] = note;
        at += length + (end != NULL);
    }
    return (int)at;
}

uint32_t speaker_idle(void)
{
    if (!ends && !used)
        return 0;
    uint64_t now = driver_now();
    if (ends > now)
        return (uint32_t)(ends - now);
    if (!used) {
        sound(0);
        ends = 0;
        return 0;
    }
    const struct note *note = &notes[first];
    sound(note->hz);
    ends = now + note->milliseconds * 1000u;
    first = (first + 1) % NOTES_MAX;
    used--;
    return (uint32_t)(ends - now);
}
