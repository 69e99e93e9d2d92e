/* free: how much memory there is, in KiB. */

#include <stdio.h>
#include <tern/lib.h>

#define PAGE_KIB 4

int main(void)
{
    struct memory_info memory;
    if (sys_getinfo(INFO_MEMORY, &memory, sizeof memory) < 0) {
        fprintf(stderr, "free: the kernel does not say\n");
        return 1;
    }
    printf("%10s %10s %10s\n%10u %10u %10u\n", "KiB", "USED", "FREE", (unsigned)memory.pages * PAGE_KIB,
           (unsigned)(memory.pages - memory.free_pages) * PAGE_KIB, (unsigned)memory.free_pages * PAGE_KIB);
    return 0;
}
