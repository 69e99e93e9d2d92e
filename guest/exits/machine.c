/* The machine as rows find it: flat segments, pages as they are in memory, the local APIC on, all interrupts
   of the 8259A masked. */

#include "exits.h"

#define APIC 0xfee00000u
#define PAGES 1024
#define PRESENT 1u
#define WRITABLE 2u
#define OF_USER 4u
#define LARGE 0x80u

struct task {
    uint32_t link, esp0, ss0, unused[4], cr3, eip, eflags, eax, ecx, edx, ebx, esp, ebp, esi, edi;
    uint32_t es, cs, ss, ds, fs, gs, ldt;
    uint16_t trap, map_base;
};

struct task_with_map {
    struct task task;
    uint8_t map[8193];
};

struct table {
    uint16_t limit;
    uint32_t base;
} __attribute__((packed));

uint64_t gdt[12] __attribute__((aligned(16)));
static uint64_t idt[256] __attribute__((aligned(16)));
static uint64_t ldt[2] __attribute__((aligned(16)));
struct table gdtr, idtr, real_idtr = {0x3ff, 0};
struct task_with_map first_task;
static struct task second_task;
static uint8_t second_stack[1024];
static uint32_t directory[PAGES] __attribute__((aligned(4096)));
static uint32_t first_pages[PAGES] __attribute__((aligned(4096)));
uint32_t adapter;

extern volatile uint32_t real_vectors[];
extern char low_begin[], low_end[], user_begin[], user_end[];
extern void divide_error(void), breakpoint(void), debug(void), undefined(void), general_protection(void),
    page_fault(void), numeric_error(void), nothing(void), leave_user(void),
    serial_interrupt(void), by_gate(void), second_code(void), unexpected(void);

static uint64_t segment(uint32_t base, uint32_t limit, uint32_t flags) {
    uint64_t low = (limit & 0xffff) | (uint64_t)(base & 0xffffff) << 16;
    return low | (uint64_t)(flags & 0xff) << 40 | (uint64_t)(limit >> 16 & 0xf) << 48
        | (uint64_t)(flags >> 8) << 52 | (uint64_t)(base >> 24) << 56;
}

static uint64_t gate(uint32_t selector, void (*to)(void), uint32_t type) {
    uint32_t offset = (uint32_t)to;
    return (offset & 0xffff) | selector << 16 | (uint64_t)type << 40 | (uint64_t)(offset >> 16) << 48;
}

static void prepare_segments(void) {
    gdt[CODE / 8] = segment(0, 0xfffff, 0xc9b);
    gdt[DATA / 8] = gdt[OTHER_DATA / 8] = segment(0, 0xfffff, 0xc93);
    gdt[USER_CODE / 8] = segment(0, 0xfffff, 0xcfb);
    gdt[USER_DATA / 8] = segment(0, 0xfffff, 0xcf3);
    gdt[FIRST_TASK / 8] = segment((uint32_t)&first_task, sizeof first_task - 1, 0x089);
    gdt[SECOND_TASK / 8] = segment((uint32_t)&second_task, sizeof second_task - 1, 0x089);
    gdt[GATE / 8] = gate(CODE, by_gate, 0xec);
    gdt[CODE_16 / 8] = segment(LOW, 0xffff, 0x09b);
    gdt[DATA_16 / 8] = segment(LOW, 0xffff, 0x093);
    gdt[LOCAL_TABLE / 8] = segment((uint32_t)ldt, sizeof ldt - 1, 0x082);
    gdtr = (struct table){sizeof gdt - 1, (uint32_t)gdt};
    __asm__ volatile("lgdt %0; ljmp %1, $1f; 1:" : : "m"(gdtr), "i"(CODE));
    __asm__ volatile("mov %0, %%ds; mov %0, %%es; mov %0, %%fs; mov %0, %%gs; mov %0, %%ss" : : "r"(DATA));
    __asm__ volatile("lldt %0" : : "r"((uint16_t)LOCAL_TABLE));
}

static void prepare_gates(void) {
    for (int vector = 0; vector < 256; vector++)
        idt[vector] = gate(CODE, unexpected, 0x8e);
    idt[0] = gate(CODE, divide_error, 0x8e);
    idt[1] = gate(CODE, debug, 0x8e);
    idt[3] = gate(CODE, breakpoint, 0xee);
    idt[6] = gate(CODE, undefined, 0x8e);
    idt[13] = gate(CODE, general_protection, 0x8e);
    idt[14] = gate(CODE, page_fault, 0x8e);
    idt[16] = gate(CODE, numeric_error, 0x8e);
    idt[SERIAL] = gate(CODE, serial_interrupt, 0x8e);
    idt[INTERRUPT] = gate(CODE, nothing, 0xee);
    idt[LEAVE] = gate(CODE, leave_user, 0xee);
    idt[APIC_TIMER] = idt[APIC_SELF] = gate(CODE, end_of_interrupt, 0x8e);
    idtr = (struct table){sizeof idt - 1, (uint32_t)idt};
    __asm__ volatile("lidt %0" : : "m"(idtr));
}

static void prepare_tasks(void) {
    first_task.task.ss0 = DATA;
    first_task.task.map_base = sizeof first_task.task;
    for (unsigned i = 0; i < sizeof first_task.map; i++)
        first_task.map[i] = 0xff;
    /* Users may access port 80h. */
    first_task.map[0x80 / 8] = 0xfe;
    first_task.task.cr3 = second_task.cr3 = (uint32_t)directory;
    first_task.task.ldt = LOCAL_TABLE;
    second_task.eip = (uint32_t)second_code;
    second_task.eflags = 2;
    second_task.esp = (uint32_t)(second_stack + sizeof second_stack);
    second_task.cs = CODE;
    second_task.ss = second_task.ds = second_task.es = second_task.fs = second_task.gs = DATA;
    second_task.map_base = sizeof second_task;
    __asm__ volatile("ltr %0" : : "r"((uint16_t)FIRST_TASK));
}

/* All addresses are physical ones. Users have the low memory of virtual-8086 mode, and code and a stack of
   their own. */
static void prepare_pages(void) {
    for (uint32_t page = 0; page < PAGES; page++) {
        uint32_t address = page << 12;
        int is_low = address < LOW + 0x10000;
        int is_users = address >= (uint32_t)user_begin && address < (uint32_t)user_end;
        first_pages[page] = address | PRESENT | WRITABLE | (is_low || is_users ? OF_USER : 0);
        directory[page] = page << 22 | PRESENT | WRITABLE | LARGE;
    }
    directory[0] = (uint32_t)first_pages | PRESENT | WRITABLE | OF_USER;
    /* Nothing is at 3 GiB. */
    directory[0xc00 / 4] = 0;
    __asm__ volatile("mov %%cr4, %%eax; or $0x210, %%eax; mov %%eax, %%cr4; mov %0, %%cr3;"
                     "mov %%cr0, %%eax; and $~0xc, %%eax; or $0x80010022, %%eax; mov %%eax, %%cr0"
                     : : "r"(directory) : "eax");
}

void set_handler(int vector, void (*handler)(void)) {
    idt[vector] = gate(CODE, handler, 0x8e);
}

void write_apic(uint32_t reg, uint32_t value) {
    *(volatile uint32_t *)(APIC + reg) = value;
}

uint32_t read_apic(uint32_t reg) {
    return *(volatile uint32_t *)(APIC + reg);
}

static void prepare_controllers(void) {
    static const uint8_t words[][2] = {{0x20, 0x11}, {0x21, 0x20}, {0x21, 4}, {0x21, 3}, {0x21, 0xff},
                                       {0xa0, 0x11}, {0xa1, 0x28}, {0xa1, 2}, {0xa1, 1}, {0xa1, 0xff}};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        out8(words[i][0], words[i][1]);
    write_apic(0xf0, 0x1ff);
    /* LINT0 is the 8259A's. */
    write_apic(0x350, 0x700);
    /* The timer counts once, divided by 1. */
    write_apic(0x3e0, 0xb);
    write_apic(0x320, 0x10000 | APIC_TIMER);
}

#define PCI_ADDRESS 0xcf8
#define PCI_DATA 0xcfc
#define DISPLAY_CONTROLLER 0x03000000

static uint32_t read_pci(uint32_t slot, uint32_t offset) {
    out32(PCI_ADDRESS, 0x80000000 | slot << 11 | offset);
    return in32(PCI_DATA);
}

/* The first region of the display adapter is its memory, whatever its mode. */
static void prepare_adapter(void) {
    for (uint32_t slot = 0; slot < 32 && !adapter; slot++)
        if ((read_pci(slot, 0) & 0xffff) != 0xffff && (read_pci(slot, 8) & 0xffff0000) == DISPLAY_CONTROLLER)
            adapter = read_pci(slot, 0x10) & ~15u;
}

int has_frame_buffer(void) {
    return adapter != 0;
}

/* Its capabilities have a vendor. */
int has_hpet(void) {
    uint32_t capabilities = *(volatile uint32_t *)0xfed00000;
    return capabilities != 0 && capabilities != 0xffffffff;
}

void prepare_machine(void) {
    for (char *from = low_begin, *to = (char *)LOW; from < low_end;)
        *to++ = *from++;
    /* INT 60h of real mode and virtual-8086 mode: low.S has its handler at its beginning. */
    real_vectors[0x60] = LOW << 12;
    prepare_segments();
    prepare_gates();
    prepare_tasks();
    prepare_controllers();
    prepare_adapter();
    prepare_pages();
}
