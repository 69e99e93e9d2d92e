/* The end: by ACPI, by a reset, or by the debug exit of emulators. */

#include "kernel.h"

#define BIOS_AREA 0xe0000u
#define BIOS_END 0x100000u
#define S5_MAX 0x10000u            /* bytes of the DSDT that are searched */
#define SLP_EN 0x2000
#define SLP_TYP_SHIFT 10
#define SCI_EN 1
#define DEBUG_EXIT 0xf4
#define RESET_CONTROL 0xcf9        /* of the PIIX3: 2, then 6, is a hard reset */
#define KEYBOARD 0x64
#define PULSE_RESET 0xfe
#define PATIENCE 100000

/* Offsets in the FADT (ACPI 6.5, 5.2.9). */
#define DSDT 40
#define SMI_COMMAND 48
#define ACPI_ENABLE 52
#define PM1A_CONTROL 64
#define PM1B_CONTROL 68

static uint32_t word_at(uint32_t physical)
{
    uint32_t word = 0;

    if (physical <= DIRECT_BYTES - sizeof word)
        memcpy(&word, at_physical(physical), sizeof word);
    return word;
}

/* Returns the table with this signature, by the RSDT. */
static uint32_t table(const char *signature)
{
    for (uint32_t at = BIOS_AREA; at < BIOS_END; at += 16) {
        if (memcmp(at_physical(at), "RSD PTR ", 8) != 0)
            continue;
        uint32_t root = word_at(at + 16), bytes = word_at(root + 4);
        for (uint32_t offset = 36; offset + 4 <= bytes && offset < PAGE; offset += 4) {
            uint32_t entry = word_at(root + offset), name = word_at(entry);
            if (memcmp(&name, signature, 4) == 0)
                return entry;
        }
    }
    return 0;
}

/* Finds the object \_S5 in the DSDT: a package whose first two numbers are the sleep types. Numbers are
   ZeroOp, OneOp, or BytePrefix and a byte (ACPI 6.5, 20.2.3). */
static int sleep_types(uint32_t dsdt, uint32_t types[2])
{
    uint32_t bytes = word_at(dsdt + 4);

    for (uint32_t at = 36; at + 12 < bytes && at < S5_MAX && dsdt + at < DIRECT_BYTES - 16; at++) {
        const uint8_t *code = at_physical(dsdt + at);
        if (memcmp(code, "_S5_\x12", 5) != 0)
            continue;
        code += 5;
        code += (*code >> 6) + 2;
        for (int i = 0; i < 2; i++) {
            types[i] = *code == 0x0a ? *++code : *code;
            code++;
        }
        return 1;
    }
    return 0;
}

static void off(void)
{
    uint32_t fadt = table("FACP"), types[2], control;

    if (fadt == 0 || !sleep_types(word_at(fadt + DSDT), types))
        return;
    control = word_at(fadt + PM1A_CONTROL);
    if (!(in16((uint16_t)control) & SCI_EN) && word_at(fadt + SMI_COMMAND) != 0) {
        out8((uint16_t)word_at(fadt + SMI_COMMAND), (uint8_t)word_at(fadt + ACPI_ENABLE));
        for (int i = 0; i < PATIENCE && !(in16((uint16_t)control) & SCI_EN); i++)
            ;
    }
    out16((uint16_t)control, (uint16_t)(types[0] << SLP_TYP_SHIFT | SLP_EN));
    control = word_at(fadt + PM1B_CONTROL);
    if (control != 0)
        out16((uint16_t)control, (uint16_t)(types[1] << SLP_TYP_SHIFT | SLP_EN));
}

void power_end(uint32_t how, uint32_t value)
{
    if (how == ABORT_RESET) {
        out8(RESET_CONTROL, 2);
        out8(RESET_CONTROL, 6);
        out8(KEYBOARD, PULSE_RESET);
    }
    if (how == ABORT_DEBUG_EXIT)
        out8(DEBUG_EXIT, (uint8_t)value);
    off();
    for (;;)
        __asm__ volatile("cli\n\thlt");
}
