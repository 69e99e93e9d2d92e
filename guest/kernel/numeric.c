/* The registers of the x87 and SSE, which are saved only when another process uses them: until then CR0.TS
   makes its first such instruction raise #NM (SDM vol. 3, 13.4). */

#include "kernel.h"

#define TS 8u                      /* of CR0 */
#define OSFXSR 0x600u              /* of CR4, and OSXMMEXCPT */
#define HAS_FXSR (1u << 24)        /* of CPUID.1:EDX */
#define HAS_SSE (1u << 25)
#define MXCSR_RESET 0x1f80u

static struct process *owner;      /* whose registers are loaded */
static uint32_t features;
static int is_off;

static void switch_off(int off)
{
    uint32_t cr0;

    if (is_off == off)
        return;
    is_off = off;
    if (!off) {
        __asm__ volatile("clts");
        return;
    }
    __asm__ volatile("movl %%cr0, %0\n\torl %1, %0\n\tmovl %0, %%cr0" : "=&r"(cr0) : "i"(TS));
}

void numbers_start(void)
{
    uint32_t a = 1, b, c, cr4;

    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(features));
    if (features & HAS_FXSR)
        __asm__ volatile("movl %%cr4, %0\n\torl %1, %0\n\tmovl %0, %%cr4" : "=&r"(cr4) : "i"(OSFXSR));
    switch_off(1);
}

static void save(struct process *process)
{
    if (features & HAS_FXSR)
        __asm__ volatile("fxsave %0" : "=m"(process->numbers));
    else
        __asm__ volatile("fnsave %0" : "=m"(process->numbers));
    process->has_numbers = 1;
}

static void load(struct process *process)
{
    uint32_t mxcsr = MXCSR_RESET;

    if (!process->has_numbers) {
        __asm__ volatile("fninit");
        if (features & HAS_SSE)
            /* LDMXCSR (%EAX), which tcc's assembler does not know. */
            __asm__ volatile(".byte 0x0f, 0xae, 0x10" : : "a"(&mxcsr), "m"(mxcsr));
        process->has_numbers = 1;
        return;
    }
    /* Bits that the register lacks would raise #GP (SDM vol. 1, 11.6.6); a signal handler may have set
       them. */
    if (features & HAS_FXSR) {
        *(uint32_t *)(process->numbers + 24) &= 0xffbf;
        __asm__ volatile("fxrstor %0" : : "m"(process->numbers));
    } else {
        __asm__ volatile("frstor %0" : : "m"(process->numbers));
    }
}

void numbers_use(void)
{
    switch_off(0);
    if (owner == current)
        return;
    if (owner != NULL)
        save(owner);
    load(current);
    owner = current;
}

void numbers_save(struct process *process)
{
    if (owner != process)
        return;
    switch_off(0);
    save(process);
    /* FNSAVE clears the registers, so they are loaded again when they are used. */
    owner = NULL;
    switch_off(1);
}

void numbers_forget(const struct process *process)
{
    if (owner == process)
        owner = NULL;
    if (process == current)
        switch_off(1);
}

void numbers_switch(void)
{
    switch_off(owner != current);
}
