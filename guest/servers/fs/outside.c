/* What the file systems need from outside: pages, the time, and a log. */

#include <string.h>
#include "outside.h"
#include "server.h"

#define PAGES_AT_ONCE 64u

struct free_page {
    struct free_page *next;
};

static struct free_page *free_pages;
static uint8_t *fresh;         /* pages that were never used, which the kernel fills with zeros */
static uint32_t fresh_count;

void *page_allocate(void)
{
    uint32_t address = 0;
    if (free_pages) {
        struct free_page *page = free_pages;
        free_pages = page->next;
        memset(page, 0, PAGE);
        return page;
    }
    if (!fresh_count) {
        if (sys_map(SELF, &address, PAGES_AT_ONCE * PAGE, MAP_WRITE, NULL))
            return NULL;
        fresh = (uint8_t *)address;
        fresh_count = PAGES_AT_ONCE;
    }
    fresh_count--;
    fresh += PAGE;
    return fresh - PAGE;
}

void page_release(void *page)
{
    struct free_page *freed = page;
    freed->next = free_pages;
    free_pages = freed;
}

static uint64_t start_since_1970;

uint64_t microseconds(void)
{
    struct times times;
    return sys_times(&times) == 0 ? times.microseconds : 0;
}

void set_time(uint64_t since_1970_at_start)
{
    start_since_1970 = since_1970_at_start;
}

uint32_t now(void)
{
    return (start_since_1970 + microseconds()) / 1000000;
}

void report(const char *what, uint32_t device)
{
    log_line("device %u:%u: %s", (unsigned)(device >> 8), (unsigned)(device & 255), what);
}
