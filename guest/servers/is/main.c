/* The information server: the kernel's tables as text, for people. */

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tern/is.h>
#include <tern/lib.h>
#include <tern/server.h>

#define TEXT_BYTES 0x8000u

static char text[TEXT_BYTES];
static uint32_t used;

static union {
    struct process_info processes[SLOTS];
    struct rights rights[SLOTS];
} table;

static void put(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int bytes = vsnprintf(text + used, TEXT_BYTES - used, format, list);
    va_end(list);
    if (bytes > 0)
        used += (uint32_t)bytes < TEXT_BYTES - used ? (uint32_t)bytes : TEXT_BYTES - used - 1;
}

static const char *state_name(uint32_t state)
{
    static char name[24];
    static const char *const waits[] = {"ready", "sends", "receives", "sends and receives"};
    snprintf(name, sizeof name, "%s%s", state & STATE_STOPPED ? "stopped " : "", waits[state & 3]);
    return name;
}

/* An endpoint as people know it. */
static const char *endpoint_name(endpoint_t endpoint)
{
    static char number[12];
    static const char *const kernels[] = {"SYSTEM", "CLOCK", "HARDWARE", "IDLE"};
    if (endpoint <= IDLE)
        return kernels[endpoint];
    if (endpoint == ANY)
        return "any";
    if (endpoint == NONE)
        return "-";
    for (int i = 0; i < SLOTS; i++)
        if (table.processes[i].endpoint == endpoint)
            return table.processes[i].name;
    snprintf(number, sizeof number, "%x", (unsigned)endpoint);
    return number;
}

static int get(uint32_t what)
{
    int bytes = sys_getinfo(what, &table, what == INFO_RIGHTS ? sizeof table.rights : sizeof table.processes);
    /* Names come from whoever created the process. */
    for (int i = 0; bytes >= 0 && i < SLOTS; i++)
        *(what == INFO_RIGHTS ? table.rights[i].name + NAME_BYTES - 1
                              : table.processes[i].name + NAME_BYTES - 1) = 0;
    return bytes < 0 ? bytes : 0;
}

static int processes(void)
{
    int result = get(INFO_PROCESSES);
    if (result)
        return result;
    put("%4s %8s %-15s %3s %4s %6s %10s %s\n", "SLOT", "ENDPOINT", "NAME", "NUM", "PRIO", "PAGES", "TIME/us",
        "STATE");
    for (int i = 0; i < SLOTS; i++) {
        const struct process_info *p = &table.processes[i];
        if (p->endpoint != NONE)
            put("%4d %8x %-15s %3u %4u %6u %10llu %s\n", i, (unsigned)p->endpoint, p->name,
                (unsigned)p->service, (unsigned)p->priority, (unsigned)p->pages,
                (unsigned long long)p->microseconds_high << 32 | p->microseconds_low, state_name(p->state));
    }
    return 0;
}

static int messages(void)
{
    int result = get(INFO_PROCESSES);
    if (result)
        return result;
    put("%-15s %10s %10s %-18s %s\n", "NAME", "SENT", "RECEIVED", "STATE", "WAITS FOR");
    for (int i = 0; i < SLOTS; i++) {
        const struct process_info *p = &table.processes[i];
        if (p->endpoint != NONE)
            put("%-15s %10u %10u %-18s %s\n", p->name, (unsigned)p->sent, (unsigned)p->received,
                state_name(p->state), p->state & 3 ? endpoint_name(p->waits_for) : "");
    }
    return 0;
}

static void put_ranges(const struct rights *r)
{
    for (uint32_t k = 0; k < r->port_ranges && k < PORT_RANGES; k++)
        put(" %x-%x", r->ports[k].first, r->ports[k].last);
    for (uint32_t k = 0; k < r->memory_ranges && k < MEMORY_RANGES; k++)
        put(" %x,%x", (unsigned)r->memory[k].base, (unsigned)r->memory[k].bytes);
    for (int line = 0; line < 16; line++)
        if (r->interrupts >> line & 1)
            put(" irq%d", line);
}

static int rights(void)
{
    int result = get(INFO_RIGHTS);
    if (result)
        return result;
    put("%-15s %3s %2s %-16s %-10s %1s %s\n", "NAME", "NUM", "TR", "SEND TO", "CALLS", "W",
        "PORTS, MEMORY, LINES");
    for (int i = 0; i < SLOTS; i++) {
        const struct rights *r = &table.rights[i];
        if (!r->name[0])
            continue;
        put("%-15s %3u %2x %016llx %010llx %1x", r->name, (unsigned)r->service, (unsigned)r->traps,
            (unsigned long long)r->send_to, (unsigned long long)r->calls, (unsigned)r->ways);
        put_ranges(r);
        put("\n");
    }
    return 0;
}

static int memory(void)
{
    struct memory_info info;
    int result = sys_getinfo(INFO_MEMORY, &info, sizeof info);
    if (result < 0)
        return result;
    put("memory: %u KiB, %u KiB free\n", (unsigned)info.pages * 4, (unsigned)info.free_pages * 4);
    return 0;
}

static int log_text(void)
{
    int bytes = sys_getinfo(INFO_LOG, text, TEXT_BYTES - 1);
    if (bytes > 0 && (uint32_t)bytes < TEXT_BYTES)
        used = bytes;
    return bytes < 0 ? bytes : 0;
}

static int make(uint32_t what)
{
    static int (*const makers[])(void) = {[IS_PROCESSES] = processes, [IS_MESSAGES] = messages,
                                          [IS_RIGHTS] = rights, [IS_MEMORY] = memory, [IS_LOG] = log_text};
    used = 0;
    if (what == 0 || what >= sizeof makers / sizeof *makers)
        return -EINVAL;
    return makers[what]();
}

static int dump(struct message *m)
{
    int result = make(m->w[0]);
    if (result)
        return result;
    uint32_t bytes = used < m->w[2] ? used : m->w[2];
    if (bytes && sys_copy(SELF, (uint32_t)text, m->source, m->w[1], bytes))
        return -EFAULT;
    m->w[0] = bytes;
    return 0;
}

/* Line by line: the log takes no longer ones. The log itself is there already. */
static int key(struct message *m)
{
    int result = m->w[0] == IS_LOG ? -EINVAL : make(m->w[0]);
    for (uint32_t at = 0; result == 0 && at < used;) {
        uint32_t bytes = 0;
        while (at + bytes < used && text[at + bytes] != '\n')
            bytes++;
        sys_log(text + at, bytes);
        at += bytes + 1;
    }
    return result;
}

int main(void)
{
    static const struct server_request requests[] = {{IS_DUMP, dump}, {IS_KEY, key}, {0, NULL}};
    static const struct server server = {.requests = requests};
    server_run(&server);
    return 0;
}
