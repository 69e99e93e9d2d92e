/* ps: lists processes. */

#include <stdio.h>
#include <string.h>
#include <tern/lib.h>
#include <tern/pm.h>

#define PROCESSES 256

int main(void)
{
    static struct pm_info infos[PROCESSES];
    static struct process_info kernel[SLOTS];
    struct message m = {.w = {(uint32_t)infos, sizeof infos}};
    if (call(SERVICE(PM), PM_GETINFO, &m) < 0 || sys_getinfo(INFO_PROCESSES, kernel, sizeof kernel) < 0) {
        fprintf(stderr, "ps: there is no list\n");
        return 1;
    }
    printf("%5s %5s %5s %8s %8s %s\n", "PID", "PPID", "PGID", "TIME/ms", "KiB", "NAME");
    for (uint32_t i = 0; i < m.w[0] / sizeof *infos; i++) {
        const struct pm_info *info = &infos[i];
        const struct process_info *process =
            SLOT_OF(info->endpoint) < SLOTS ? &kernel[SLOT_OF(info->endpoint)] : NULL;
        uint64_t run = 0;
        uint32_t pages = 0;
        if (process && process->endpoint == info->endpoint) {
            run = (uint64_t)process->microseconds_high << 32 | process->microseconds_low;
            pages = process->pages;
        }
        printf("%5d %5d %5d %8llu %8u %.16s%s\n", (int)info->pid, (int)info->parent, (int)info->group,
               (unsigned long long)run / 1000, (unsigned)pages * 4, info->name,
               info->endpoint == NONE ? " (ended)" : "");
    }
    return 0;
}
