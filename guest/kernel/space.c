/* The memory of a process: its page directory and tables (SDM vol. 3, 4.3). A page that is mapped but was
   never touched has an entry that is not present, with ON_TOUCH. Pages that a fork shares are read-only, with
   ON_WRITE. */

#include "kernel.h"

#define PRESENT 1u
#define WRITABLE 2u
#define USER 4u
#define UNCACHED 0x18u             /* PWT and PCD */
/* Bits that the processor leaves to software (table 4-6). In an entry that is not present, all are. */
#define ON_WRITE 0x200u            /* shared; copied when written */
#define DEVICE 0x400u              /* no page of the list of pages, or one for DMA */
#define ON_TOUCH 0x800u            /* a page of zeros when touched */

#define ENTRIES 1024
#define USER_TABLES (KERNEL_BASE >> 22)

extern uint32_t kernel_directory[];

static uint32_t *directory_of(const struct process *process)
{
    return at_physical(process->directory);
}

/* Returns the entry for `address`, or NULL if there is no table for it, unless one can be made. */
static uint32_t *entry(struct process *process, uint32_t address, int makes_table)
{
    uint32_t *slot = &directory_of(process)[address >> 22];
    uint32_t table;

    if (!(*slot & PRESENT)) {
        if (!makes_table || (table = page_allocate()) == NO_PAGE)
            return NULL;
        *slot = table | PRESENT | WRITABLE | USER;
    }
    return (uint32_t *)at_physical(*slot & -PAGE) + (address >> 12) % ENTRIES;
}

static void changed(const struct process *process, uint32_t address)
{
    if (process->directory == loaded_directory())
        forget_page(address);
}

int space_create(struct process *process)
{
    uint32_t page = page_allocate();

    if (page == NO_PAGE)
        return -ENOMEM;
    process->directory = page;
    process->next_map = MAPS_BASE;
    memcpy(directory_of(process) + USER_TABLES, kernel_directory + USER_TABLES,
           (ENTRIES - USER_TABLES) * sizeof *kernel_directory);
    return 0;
}

static void release(struct process *process, uint32_t *slot)
{
    if ((*slot & (PRESENT | DEVICE)) == PRESENT) {
        page_release(*slot & -PAGE);
        process->pages--;
    }
    *slot = 0;
}

void space_clear(struct process *process)
{
    uint32_t *directory = directory_of(process);

    for (uint32_t table = 0; table < USER_TABLES; table++) {
        if (!(directory[table] & PRESENT))
            continue;
        uint32_t *entries = at_physical(directory[table] & -PAGE);
        for (int i = 0; i < ENTRIES; i++)
            if (entries[i] != 0)
                release(process, &entries[i]);
        page_release(directory[table] & -PAGE);
        directory[table] = 0;
    }
    process->next_map = MAPS_BASE;
    if (process->directory == loaded_directory())
        load_directory(process->directory);
}

void space_destroy(struct process *process)
{
    space_clear(process);
    if (process->directory == loaded_directory())
        load_directory((uint32_t)kernel_directory - KERNEL_BASE);
    page_release(process->directory);
    process->directory = 0;
}

/* Shares all pages of `from` with `to`, until one of them writes. Device memory stays with `from`. */
int space_fork(struct process *from, struct process *to)
{
    uint32_t *directory = directory_of(from);

    for (uint32_t table = 0; table < USER_TABLES; table++) {
        if (!(directory[table] & PRESENT))
            continue;
        uint32_t *old = at_physical(directory[table] & -PAGE);
        uint32_t *new = entry(to, table << 22, 1);
        if (new == NULL)
            return -ENOMEM;
        for (int i = 0; i < ENTRIES; i++) {
            if (old[i] == 0 || (old[i] & DEVICE))
                continue;
            if (old[i] & PRESENT) {
                if (page_users(old[i] & -PAGE) >= 0xfff0)
                    return -ENOMEM;
                if (old[i] & WRITABLE)
                    old[i] = (old[i] & ~WRITABLE) | ON_WRITE;
                page_share(old[i] & -PAGE);
                to->pages++;
            }
            new[i] = old[i];
        }
    }
    to->next_map = from->next_map;
    if (from->directory == loaded_directory())
        load_directory(from->directory);
    return 0;
}

static int is_range(uint32_t address, uint32_t bytes)
{
    return (address | bytes) % PAGE == 0 && bytes > 0 && address >= PAGE && address < KERNEL_BASE
        && bytes <= KERNEL_BASE - address;
}

static int is_free(struct process *process, uint32_t address, uint32_t bytes)
{
    for (uint32_t at = address; at - address < bytes;) {
        uint32_t *slot = entry(process, at, 0);
        if (slot == NULL)
            at = (at & -(PAGE * ENTRIES)) + PAGE * ENTRIES;
        else if (*slot != 0)
            return 0;
        else
            at += PAGE;
    }
    return 1;
}

/* Finds a free range behind the last one that was given, and from the beginning if there is none. */
static int choose(struct process *process, uint32_t bytes, uint32_t *address)
{
    uint32_t limit = STACK_TOP - STACK_BYTES, at = process->next_map;
    int again = 0;

    if (bytes == 0 || bytes > limit - MAPS_BASE)
        return -EINVAL;
    for (;; at += PAGE) {
        if (at > limit - bytes) {
            if (again++)
                return -ENOMEM;
            at = MAPS_BASE;
        }
        uint32_t *slot = entry(process, at, 0);
        if (slot != NULL && *slot != 0)
            continue;
        if (is_free(process, at, bytes))
            break;
    }
    process->next_map = at + bytes;
    *address = at;
    return 0;
}

/* Checks or chooses an address, and sees that tables exist for the whole range. */
static int prepare(struct process *process, uint32_t *address, uint32_t bytes)
{
    int error = *address == 0 ? choose(process, bytes, address) : 0;

    if (error != 0)
        return error;
    if (!is_range(*address, bytes))
        return -EINVAL;
    if (!is_free(process, *address, bytes))
        return -EEXIST;
    for (uint32_t at = *address; at - *address < bytes; at += PAGE)
        if (entry(process, at, 1) == NULL)
            return -ENOMEM;
    return 0;
}

int space_map(struct process *process, uint32_t *address, uint32_t bytes, uint32_t flags, uint32_t *physical)
{
    uint32_t access = USER | (flags & MAP_WRITE ? WRITABLE : 0);
    uint32_t page = 0;
    int error;

    if (bytes % PAGE != 0 || bytes > DIRECT_BYTES)
        return -EINVAL;
    if ((error = prepare(process, address, bytes)) != 0)
        return error;
    if (flags & MAP_CONTIGUOUS) {
        page = pages_for_dma(process, bytes / PAGE);
        if (page == NO_PAGE)
            return -ENOMEM;
        *physical = page;
    }
    for (uint32_t at = *address; at - *address < bytes; at += PAGE) {
        uint32_t *slot = entry(process, at, 0);
        *slot = flags & MAP_CONTIGUOUS ? page | access | PRESENT | DEVICE : access | ON_TOUCH;
        page += PAGE;
    }
    return 0;
}

int space_map_device(struct process *process, uint32_t *address, uint32_t bytes, uint32_t flags,
                     uint32_t physical)
{
    uint32_t bits = PRESENT | USER | DEVICE | (flags & MAP_WRITE ? WRITABLE : 0);
    int error;

    bits |= flags & MAP_UNCACHED ? UNCACHED : 0;
    if (physical % PAGE != 0 || (error = prepare(process, address, bytes)) != 0)
        return physical % PAGE != 0 ? -EINVAL : error;
    for (uint32_t at = *address; at - *address < bytes; at += PAGE, physical += PAGE)
        *entry(process, at, 0) = physical | bits;
    return 0;
}

int space_unmap(struct process *process, uint32_t address, uint32_t bytes)
{
    if (!is_range(address, bytes))
        return -EINVAL;
    for (uint32_t at = address; at - address < bytes;) {
        uint32_t *slot = entry(process, at, 0);
        if (slot == NULL) {
            at = (at & -(PAGE * ENTRIES)) + PAGE * ENTRIES;
            continue;
        }
        if (*slot != 0) {
            release(process, slot);
            changed(process, at);
        }
        at += PAGE;
    }
    return 0;
}

/* Gives the entry a page of its own, with the contents of the shared one. */
static int copy_shared(uint32_t *slot)
{
    uint32_t old = *slot & -PAGE, new;

    if (page_users(old) > 1) {
        if ((new = page_allocate()) == NO_PAGE)
            return -ENOMEM;
        memcpy(at_physical(new), at_physical(old), PAGE);
        page_release(old);
        *slot = new | (*slot & (PAGE - 1));
    }
    *slot = (*slot & ~ON_WRITE) | WRITABLE;
    return 0;
}

uint8_t *space_byte(struct process *process, uint32_t address, int writes)
{
    uint32_t *slot, page;

    if (address >= KERNEL_BASE || (slot = entry(process, address, 0)) == NULL)
        return NULL;
    if (!(*slot & PRESENT)) {
        if (!(*slot & ON_TOUCH) || (writes && !(*slot & WRITABLE)) || (page = page_allocate()) == NO_PAGE)
            return NULL;
        *slot = page | PRESENT | (*slot & (WRITABLE | USER));
        process->pages++;
    } else if (writes && !(*slot & WRITABLE)) {
        if (!(*slot & ON_WRITE) || copy_shared(slot) != 0)
            return NULL;
        changed(process, address);
    }
    /* Device memory may be beyond what the kernel maps. */
    if ((*slot & -PAGE) >= DIRECT_BYTES)
        return NULL;
    return (uint8_t *)at_physical(*slot & -PAGE) + address % PAGE;
}
