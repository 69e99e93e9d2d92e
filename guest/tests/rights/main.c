/* Tests rights from inside: whatever its own rights leave out is refused with an error and a line of the
   kernel's log. Prints what is not so, and returns whether there was something. What it tries depends on the
   rights of users (etc/services): with some calls more than usual, it tries what these refuse, too. */

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <tern/calls.h>
#include <tern/hal.h>
#include <tern/lib.h>
#include <tern/pm.h>
#include <unistd.h>

#define LOGGED_A_SECOND 32     /* kernel/rights.c: more refusals than that are not logged */
#define LINE_BYTES 128
#define ELEMENTS 4

int ipc_trap(uint32_t operation, endpoint_t endpoint, void *message, uint32_t value);

static int failures, attempts;
static endpoint_t self;
static const char *name;       /* by which the kernel knows this process */
static struct rights rights;
static uint32_t elements[ELEMENTS];

static struct process_info processes[SLOTS];

static int may_call(uint32_t call)
{
    return rights.calls >> call & 1;
}

static int may_trap(uint32_t operation)
{
    return rights.traps >> operation & 1;
}

/* SYSTEM executes one call at a time: only its caller waits for it. */
static int find_self(void)
{
    int bytes = sys_getinfo(INFO_PROCESSES, processes, sizeof processes);
    for (int i = 0; i < bytes / (int)sizeof *processes; i++)
        if (processes[i].endpoint != NONE && processes[i].state == STATE_RECEIVING &&
            processes[i].waits_for == SYSTEM) {
            self = processes[i].endpoint;
            name = processes[i].name;
            return 1;
        }
    return 0;
}

static int find_rights(void)
{
    static struct rights all[SLOTS];
    int bytes = sys_getinfo(INFO_RIGHTS, all, sizeof all);
    rights = all[SLOT_OF(self)];
    return bytes == sizeof all;
}

/* The last line of the kernel's log. */
static void last_line(char *line)
{
    char text[LINE_BYTES + 1];
    int bytes = sys_getinfo(INFO_LOG, text, LINE_BYTES);
    text[bytes > 0 ? bytes : 0] = 0;
    if (bytes > 0 && text[bytes - 1] == '\n')
        text[bytes - 1] = 0;
    char *start = strrchr(text, '\n');
    strcpy(line, start ? start + 1 : text);
}

static void wrong(const char *try, uint32_t what, const char *why)
{
    printf("rights: %s %x: %s\n", try, (unsigned)what, why);
    failures++;
}

/* Waits until the kernel logs the next refusal. */
static void begin(void)
{
    if (attempts++ % LOGGED_A_SECOND == 0)
        sleep(1);
}

/* Checks the result of a try that had to be refused. Before it, the last line of the log was another one. */
static void refused(const char *try, uint32_t what, int result, int error, const char *kind, uint32_t logged)
{
    char line[LINE_BYTES + 1], wanted[LINE_BYTES];
    snprintf(wanted, sizeof wanted, "%s (%x): no right to %s %x", name, (unsigned)self, kind, (unsigned)logged);
    last_line(line);
    if (result != -error)
        wrong(try, what, "another result");
    if (strcmp(line, wanted) != 0)
        wrong(try, what, line);
}

static void test_traps(void)
{
    for (uint32_t operation = IPC_SEND; operation <= IPC_SENDA; operation++) {
        struct message m = {.type = 0};
        if (may_trap(operation))
            continue;
        begin();
        refused("trap", operation, ipc_trap(operation, SERVICE(PM), &m, 1), ETRAPDENIED, "trap", operation);
    }
}

static void test_calls(void)
{
    for (uint32_t number = SYS_CREATE; number < KERNEL_CALLS; number++) {
        struct message m = {.w = {0}};
        if (may_call(number))
            continue;
        begin();
        refused("call", number, call(SYSTEM, number, &m), ECALLDENIED, "kernel call", number);
    }
}

/* Asynchronously: the error stands in the table. */
static int send_later(endpoint_t to)
{
    static struct asynchronous table;
    table = (struct asynchronous){.to = to};
    int result = ipc_senda(&table, 1);
    return result ? result : table.done;
}

/* Everybody to whom it may not send, by each trap. */
static void test_destinations(void)
{
    static const uint32_t operations[] = {IPC_SEND, IPC_SENDREC, IPC_NOTIFY, IPC_SENDA};
    for (uint32_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        for (uint32_t slot = 0; slot < SLOTS && may_trap(operations[i]); slot++) {
            const struct process_info *process = &processes[slot];
            struct message m = {.type = 1};
            if (slot < 4 || process->endpoint == NONE || process->endpoint == self ||
                rights.send_to >> process->service & 1)
                continue;
            begin();
            int result = operations[i] == IPC_SENDA ? send_later(process->endpoint)
                : ipc_trap(operations[i], process->endpoint, &m, 1);
            refused("destination", slot, result, EDESTDENIED, "send to", process->endpoint);
        }
    }
}

static int access_by_message(uint32_t form, uint32_t size, uint32_t port)
{
    struct port_access vector = {form & 1, size, port, 0};
    uint32_t value;
    switch (form) {
    case 0:
        return sys_in(size, port, &value);
    case 1:
        return sys_out(size, port, 0);
    case 2:
    case 3:
        return sys_sdevio(form & 1, size, port, elements, ELEMENTS);
    default:
        return sys_vdevio(&vector, 1);
    }
}

/* The interrupt controllers', the keyboard's, and both ends. */
static const uint16_t ports[] = {0, 0x21, 0x64, 0xa1, 0xffff};
static const uint32_t sizes[] = {1, 2, 4};

#define PORTS (sizeof ports / sizeof *ports)

static void test_messages_for_ports(void)
{
    for (uint32_t form = 0; form < 6; form++) {
        for (uint32_t i = 0; i < PORTS; i++) {
            begin();
            int result = access_by_message(form, sizes[(form + i) % 3], ports[i]);
            refused("port by message", form, result, EPORTDENIED, "port", ports[i]);
        }
    }
}

static void test_direct_calls(void)
{
    for (uint32_t function = HAL_IN_BYTE; function <= HAL_VECTOR_ACCESS; function++) {
        uint32_t value = ELEMENTS, port = ports[function % PORTS];
        begin();
        refused("direct call", function, hal_call(function, port, &value, elements), EPORTDENIED, "port", port);
    }
}

static void in(void) { __asm__ volatile("inb $0xa1, %%al" : : : "eax"); }
static void out(void) { __asm__ volatile("outb %%al, $0xa1" : : "a"(0xff)); }
static void in_string(void)
{
    uint32_t count = ELEMENTS, *to = elements;
    __asm__ volatile("rep insl" : "+D"(to), "+c"(count) : "d"(0xcf8) : "memory");
}
static void out_string(void)
{
    uint32_t count = ELEMENTS, *from = elements;
    __asm__ volatile("rep outsl" : "+S"(from), "+c"(count) : "d"(0xcf8) : "memory");
}
static void disable(void) { __asm__ volatile("cli"); }
static void halt(void) { __asm__ volatile("hlt"); }

/* The processor refuses these. */
static void test_instructions(void)
{
    static void (*const instructions[])(void) = {in, out, in_string, out_string, disable, halt};
    for (uint32_t i = 0; i < sizeof instructions / sizeof *instructions; i++) {
        char line[LINE_BYTES + 1];
        int status = 0;
        pid_t pid = fork();
        if (pid == 0) {
            instructions[i]();
            _exit(0);
        }
        waitpid(pid, &status, 0);
        last_line(line);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
            wrong("instruction", i, "no signal");
        if (!strstr(line, "exception 13 at"))
            wrong("instruction", i, line);
    }
}

static int access_line(uint32_t what, uint32_t line)
{
    uint32_t value = 0;
    return what == 0 ? hal_call(HAL_IRQ_ENABLE, line, &value, NULL) : sys_irqctl(what, line);
}

/* Directly, and by all messages. There are 16 lines; the lowest and those behind the last are enough. */
static void test_lines(void)
{
    for (uint32_t what = 0; what <= IRQ_REMOVE; what++) {
        for (uint32_t line = 0; line < 18; line++) {
            if (what > IRQ_SET && line > 1 && line < 16)
                continue;
            if (line < 16 && rights.interrupts >> line & 1)
                continue;
            begin();
            refused("line", line, access_line(what, line), EIRQDENIED, "interrupt line", line);
        }
    }
}

static void test_memory(void)
{
    /* The kernel's own, the screen, the local APIC, the last page. */
    static const uint32_t bases[] = {0, 0x100000, 0xb8000, 0xfee00000, 0xfffff000};
    for (uint32_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        uint32_t address = 0;
        begin();
        refused("memory", bases[i], sys_mapphysical(SELF, &address, 4096, MAP_WRITE, bases[i]), EPERM, "memory at",
                bases[i]);
    }
}

/* A page of one's own has one physical address; that of others is not for those who may not COPY. */
static void test_umap(void)
{
    uint32_t physical = 0, contiguous = 0, direct = 0;
    if (sys_umap(SELF, (uint32_t)elements, 4, &physical, &contiguous) != 0 || contiguous != 4 ||
        hal_call(HAL_UMAP, (uint32_t)elements, &direct, NULL) != 0 || direct != physical)
        wrong("umap", physical, "another result");
    begin();
    refused("umap of another", PM, sys_umap(SERVICE(PM), IMAGE_BASE, 4, &physical, &contiguous), ECALLDENIED,
            "kernel call", SYS_COPY);
}

/* Whose memory is granted. */
enum whose { OWN, READERS, MANAGERS };

/* What a reader asks for, each time by a grant of its own. The first two are right. */
static const struct trial {
    enum whose whose;
    int is_for_reader;
    uint32_t access, offset, bytes, direction;
} trials[] = {
    {OWN, 1, GRANT_READ, 4, 12, GRANT_READ},
    {OWN, 1, GRANT_WRITE, 0, 16, GRANT_WRITE},
    {OWN, 1, GRANT_READ, 0, 4, GRANT_WRITE},
    {OWN, 1, GRANT_WRITE, 0, 4, GRANT_READ},
    {OWN, 1, GRANT_READ, 0, 17, GRANT_READ},
    {OWN, 1, GRANT_READ, 17, 0, GRANT_READ},
    {OWN, 1, GRANT_READ, 8, ~0u - 4, GRANT_READ},
    {OWN, 0, GRANT_READ, 0, 4, GRANT_READ},
    {MANAGERS, 1, GRANT_READ | GRANT_WRITE, 0, 4, GRANT_READ},
    {MANAGERS, 1, GRANT_READ | GRANT_WRITE, 0, 4, GRANT_WRITE},
    {READERS, 1, GRANT_READ | GRANT_WRITE, 0, 4, GRANT_READ},
};

#define TRIALS (sizeof trials / sizeof *trials)
#define RIGHT 2

static struct grant grants[TRIALS];

static void fill_table(endpoint_t reader)
{
    for (uint32_t i = 0; i < TRIALS; i++) {
        const endpoint_t of[] = {0, reader, SERVICE(PM)};
        uint32_t address = trials[i].whose == MANAGERS ? IMAGE_BASE : (uint32_t)elements;
        grants[i] = (struct grant){trials[i].is_for_reader ? reader : SERVICE(PM), trials[i].access, address,
                                   sizeof elements, of[trials[i].whose]};
    }
}

static int copy_by(int directly, endpoint_t granter, uint32_t grant, void *to, const struct trial *trial)
{
    struct safe_copy copy = {granter, grant, trial->offset, (uint32_t)to, trial->bytes, trial->direction};
    uint32_t value = 0;
    if (directly)
        return hal_call(HAL_COPY, 0, &value, &copy);
    return sys_safecopy(granter, grant, trial->offset, to, trial->bytes, trial->direction);
}

static void read_grants(endpoint_t granter, int directly)
{
    uint32_t memory[ELEMENTS] = {5, 6, 7, 8};
    for (uint32_t i = 0; i < RIGHT; i++)
        if (copy_by(directly, granter, i, memory, &trials[i]) != 0)
            wrong("grant", i, "was refused");
    if (!directly && (memory[0] != 2 || memory[1] != 3 || memory[2] != 4))
        wrong("grant", 0, "other bytes");
    for (uint32_t i = RIGHT; i < TRIALS + 2; i++) {
        begin();
        refused("grant", i, copy_by(directly, granter, i, memory, &trials[i % TRIALS]), EGRANT, "grant", i);
    }
    begin();
    refused("own grant", 0, copy_by(directly, self, 0, memory, &trials[0]), EGRANT, "grant", 0);
}

static void test_grants(void)
{
    int to_granter[2], to_reader[2], status = 0;
    endpoint_t reader = NONE, granter = self;
    for (uint32_t i = 0; i < ELEMENTS; i++)
        elements[i] = i + 1;
    if (pipe(to_granter) != 0 || pipe(to_reader) != 0)
        wrong("grant", 0, "no pipes");
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        find_self();
        if (write(to_granter[1], &self, sizeof self) == sizeof self && read(to_reader[0], &byte, 1) == 1) {
            read_grants(granter, 0);
            read_grants(granter, 1);
        } else {
            wrong("grant", 0, "no word of the granter");
        }
        fflush(stdout);
        _exit(failures != 0);
    }
    read(to_granter[0], &reader, sizeof reader);
    fill_table(reader);
    if (sys_setgrants(grants, TRIALS) != 0)
        wrong("grant", 0, "no table");
    write(to_reader[1], "x", 1);
    waitpid(pid, &status, 0);
    failures += status != 0;
    /* The third element of the first ones has become the second, and that the first. */
    if (elements[0] != 3)
        wrong("grant", 1, "other bytes");
    attempts = 0;
}

int main(void)
{
    if (!find_self() || !find_rights()) {
        printf("rights: the kernel does not tell them\n");
        return 1;
    }
    test_traps();
    test_calls();
    test_destinations();
    test_direct_calls();
    test_instructions();
    if (may_call(SYS_DEVIO))
        test_messages_for_ports();
    if (may_call(SYS_IRQCTL))
        test_lines();
    if (may_call(SYS_MAPPHYSICAL))
        test_memory();
    if (may_call(SYS_UMAP))
        test_umap();
    if (may_call(SYS_SETGRANTS) && may_call(SYS_SAFECOPY))
        test_grants();
    if (failures == 0)
        printf("rights: whatever they leave out is refused\n");
    return failures != 0;
}
