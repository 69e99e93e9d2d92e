/* What the parts of the guest share; main.c says what it is for. */
#pragma once

/* Selectors; the descriptors are in machine.c. */
#define CODE 0x08
#define DATA 0x10
#define USER_CODE 0x1b
#define USER_DATA 0x23
#define FIRST_TASK 0x28
#define SECOND_TASK 0x30
#define GATE 0x3b
#define CODE_16 0x40
#define DATA_16 0x48
#define LOCAL_TABLE 0x50
#define OTHER_DATA 0x58

/* Where the 16-bit code of low.S is executed: segment 1000h. */
#define LOW 0x10000

/* Vectors with a meaning of their own. */
#define INTERRUPT 0x30
#define LEAVE 0x31
#define APIC_TIMER 0x40
#define APIC_SELF 0x41
#define SERIAL 0x24

#ifndef ASSEMBLER

#include <stdint.h>

/* One thing that is measured: rows.S and low.S have them all. */
struct row {
    const char *name;
    /* How often it is done on a PC. */
    uint32_t count;
    /* Does it so often; gives something that it has computed. */
    uint32_t (*run)(uint32_t count);
    /* 0 where the machine has not got what it needs; none if all have it. */
    int (*present)(void);
};

/* main.c: 1 if `line` begins with `name` and a space, or is it; `rest` is what comes after that. */
int begins(const char *line, const char *name, const char **rest);
/* The number that `text` begins with, which is left behind. */
uint32_t number(const char **text);

/* ticks.c */
void count_ticks(const char *line);

/* machine.c: descriptors, gates, pages and controllers. */
void prepare_machine(void);
void set_handler(int vector, void (*handler)(void));
void write_apic(uint32_t reg, uint32_t value);
uint32_t read_apic(uint32_t reg);
/* transfers.S: the handler of interrupts of the local APIC that mean nothing more. */
void end_of_interrupt(void);

/* serial.c: COM1. */
void prepare_serial(void);
char get(void);
void put(const char *text);
void put_number(uint32_t number);
void put_hex(uint32_t number);

static inline void out8(uint16_t port, uint8_t value) {
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static inline uint8_t in8(uint16_t port) {
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static inline void out16(uint16_t port, uint16_t value) {
    __asm__ volatile("outw %0, %1" : : "a"(value), "Nd"(port));
}

static inline void out32(uint16_t port, uint32_t value) {
    __asm__ volatile("outl %0, %1" : : "a"(value), "Nd"(port));
}

static inline uint32_t in32(uint16_t port) {
    uint32_t value;
    __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

#endif
