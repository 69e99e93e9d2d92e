/* Pages of physical memory: a list of free ones, and for each page the number of its users. */

#include "kernel.h"

#define HIGHEST (DIRECT_BYTES / PAGE)
#define FIRST_MIB 0x100000u
#define DMA_BLOCKS 64

/* The memory map of the Multiboot information (3.3), of which offsets 44 and 48 have length and address. */
struct range {
    uint32_t size;
    uint64_t base, bytes;
    uint32_t type;                 /* 1: RAM */
} __attribute__((packed));

uint32_t pages_total, pages_free;

static uint16_t *users;            /* by page; only those below `highest` exist */
static uint32_t highest;
static uint32_t first_free = NO_PAGE;
extern char _end[];

static uint32_t range_end(const struct range *range)
{
    uint64_t end = range->base + range->bytes;
    return range->base >= DIRECT_BYTES ? 0 : end > DIRECT_BYTES ? DIRECT_BYTES : (uint32_t)end;
}

static void add_free(uint32_t page)
{
    *(uint32_t *)at_physical(page) = first_free;
    first_free = page;
    pages_free++;
}

/* Takes the boot loader's information. The archive stays where it is; the information itself is not needed
   later. */
void memory_start(const uint32_t *information)
{
    const uint8_t *map = at_physical(information[12]), *end = map + information[11], *entry;
    uint32_t highest_address = 0, page, reserved;
    uint32_t archive_end = boot.archive + boot.archive_bytes;

    for (entry = map; entry < end; entry += ((const struct range *)entry)->size + 4) {
        const struct range *range = (const struct range *)entry;
        if (range->type == 1 && range_end(range) > highest_address)
            highest_address = range_end(range);
    }
    highest = highest_address / PAGE;
    /* The table follows the kernel, or the archive, where one of them ends last. */
    reserved = (uint32_t)_end - KERNEL_BASE;
    if (archive_end > reserved)
        reserved = archive_end;
    reserved = (reserved + PAGE - 1) & -PAGE;
    /* The map may be where the table will be, so the table is marked from a copy. */
    static uint32_t from[16], to[16];
    uint32_t ranges = 0;
    for (entry = map; entry < end && ranges < 16; entry += ((const struct range *)entry)->size + 4) {
        const struct range *range = (const struct range *)entry;
        if (range->type != 1 || range->base >= DIRECT_BYTES)
            continue;
        from[ranges] = ((uint32_t)range->base + PAGE - 1) & -PAGE;
        to[ranges++] = range_end(range) & -PAGE;
    }
    users = at_physical(reserved);
    memset(users, 0xff, highest * sizeof *users);
    reserved = (reserved + highest * sizeof *users + PAGE - 1) & -PAGE;
    /* From the top down, so that the list begins with the lowest page. */
    while (ranges > 0) {
        ranges--;
        if (from[ranges] < FIRST_MIB)
            continue;
        for (page = to[ranges]; page > from[ranges] && page - PAGE >= reserved; page -= PAGE) {
            users[(page - PAGE) / PAGE] = 0;
            add_free(page - PAGE);
        }
    }
    pages_total = pages_free;
}

uint32_t page_allocate(void)
{
    uint32_t page = first_free;

    if (page == NO_PAGE)
        return NO_PAGE;
    first_free = *(uint32_t *)at_physical(page);
    users[page / PAGE] = 1;
    pages_free--;
    memset(at_physical(page), 0, PAGE);
    return page;
}

/* Takes `page` out of the list of free pages. */
static void take(uint32_t page)
{
    uint32_t *link = &first_free;

    while (*link != page)
        link = at_physical(*link);
    *link = *(uint32_t *)at_physical(page);
    pages_free--;
}

/* Searches from the top, where single pages are taken last. */
static uint32_t pages_allocate(uint32_t count)
{
    uint32_t run = 0, page, i;

    for (page = highest; page-- > 0;) {
        run = users[page] == 0 ? run + 1 : 0;
        if (run < count)
            continue;
        for (i = page; i < page + count; i++) {
            take(i * PAGE);
            users[i] = 1;
        }
        return page * PAGE;
    }
    return NO_PAGE;
}

/* A device may still write to the memory of a driver that has died, until another one resets it: so memory
   for DMA stays with the service, whose next process gets it. */
uint32_t pages_for_dma(const struct process *process, uint32_t count)
{
    static struct {
        uint32_t service, page, count;
        endpoint_t process;
    } blocks[DMA_BLOCKS];
    static uint32_t used;
    uint32_t i = 0;

    while (i < used && (blocks[i].service != process->rights.service || blocks[i].count != count
                        || process_at(blocks[i].process) != NULL))
        i++;
    if (i == DMA_BLOCKS)
        return NO_PAGE;
    if (i == used) {
        blocks[i].page = pages_allocate(count);
        if (blocks[i].page == NO_PAGE)
            return NO_PAGE;
        blocks[i].service = process->rights.service;
        blocks[i].count = count;
        used++;
    }
    blocks[i].process = process->endpoint;
    memset(at_physical(blocks[i].page), 0, count * PAGE);
    return blocks[i].page;
}

void page_share(uint32_t page)
{
    users[page / PAGE]++;
}

uint32_t page_users(uint32_t page)
{
    return users[page / PAGE];
}

void page_release(uint32_t page)
{
    if (--users[page / PAGE] == 0)
        add_free(page);
}
