/* The configuration: /etc/services, whose head describes it. */

#include <stdlib.h>
#include <string.h>
#include "rs.h"

struct service services[SERVICES];
uint32_t service_count;
struct rights users;

#define WORDS 48
#define LINE_BYTES 256

struct line {
    uint32_t number;
    uint32_t words;
    char *word[WORDS];
    char text[LINE_BYTES];
};

static const char *const call_names[KERNEL_CALLS] = {
    [SYS_CREATE] = "create", [SYS_FORK] = "fork", [SYS_START] = "start", [SYS_RESUME] = "resume",
    [SYS_STOP] = "stop", [SYS_DESTROY] = "destroy", [SYS_PRIVCTL] = "privctl", [SYS_PRIORITY] = "priority",
    [SYS_MAP] = "map", [SYS_MAPPHYSICAL] = "mapphysical", [SYS_UNMAP] = "unmap", [SYS_SHARE] = "share",
    [SYS_UMAP] = "umap", [SYS_COPY] = "copy", [SYS_SETGRANTS] = "setgrants", [SYS_SAFECOPY] = "safecopy",
    [SYS_VCOPY] = "vcopy", [SYS_DEVIO] = "devio", [SYS_SDEVIO] = "sdevio", [SYS_VDEVIO] = "vdevio",
    [SYS_IRQCTL] = "irqctl", [SYS_ALARM] = "alarm", [SYS_TIMES] = "times", [SYS_SETCLOCK] = "setclock",
    [SYS_GETCLOCK] = "getclock", [SYS_GETEVENT] = "getevent", [SYS_SIGSEND] = "sigsend",
    [SYS_SIGRETURN] = "sigreturn", [SYS_GETINFO] = "getinfo", [SYS_ABORT] = "abort", [SYS_LOG] = "log"};

static const char *const trap_names[] = {
    [IPC_SEND] = "send", [IPC_RECEIVE] = "receive", [IPC_SENDREC] = "sendrec", [IPC_NOTIFY] = "notify",
    [IPC_SENDA] = "senda"};

struct service *service_by_name(const char *name)
{
    for (uint32_t i = 0; i < service_count; i++)
        if (strcmp(services[i].name, name) == 0)
            return &services[i];
    return NULL;
}

struct service *service_by_endpoint(endpoint_t endpoint)
{
    for (uint32_t i = 0; i < service_count; i++)
        if (services[i].endpoint == endpoint && endpoint != NONE)
            return &services[i];
    return NULL;
}

static void wrong(const struct line *line, const char *why)
{
    log_line("/etc/services:%u: %s", line->number, why);
}

/* Cuts the next line out of the text and splits it into words. Returns what is behind it, or NULL at the
   end. */
static const char *next_line(const char *text, const char *end, struct line *line)
{
    if (text >= end)
        return NULL;
    const char *stop = memchr(text, '\n', end - text);
    size_t length = (stop ? stop : end) - text;
    line->number++;
    line->words = 0;
    if (length >= LINE_BYTES)
        wrong(line, "the line is too long");
    else
        memcpy(line->text, text, length);
    line->text[length < LINE_BYTES ? length : 0] = 0;
    char *p = line->text;
    while (line->words < WORDS) {
        while (*p == ' ' || *p == '\t')
            *p++ = 0;
        if (*p == 0 || *p == '#')
            break;
        line->word[line->words++] = p;
        while (*p && *p != ' ' && *p != '\t')
            p++;
    }
    *p = 0;
    return stop ? stop + 1 : end;
}

/* A number up to `limit`; whatever else there is in the word is wrong. */
static int number(const char *word, int base, uint32_t limit, uint32_t *value)
{
    char *end;
    *value = strtoul(word, &end, base);
    return *word && !*end && *value <= limit;
}

/* FIRST-LAST, BASE,BYTES or VENDOR:DEVICE. A single port is a range too. */
static int pair(char *word, char separator, uint32_t limit, uint32_t *first, uint32_t *second)
{
    char *middle = strchr(word, separator);
    if (middle)
        *middle++ = 0;
    else if (separator != '-')
        return 0;
    return number(word, 16, limit, first) && number(middle ? middle : word, 16, limit, second);
}

static void read_ports(const struct line *line, struct rights *rights)
{
    for (uint32_t i = 1; i < line->words; i++) {
        uint32_t first, last;
        if (rights->port_ranges == PORT_RANGES || !pair(line->word[i], '-', 0xffff, &first, &last) ||
            first > last)
            wrong(line, "ports: FIRST-LAST, at most 8 of them");
        else
            rights->ports[rights->port_ranges++] = (struct port_range){first, last};
    }
}

static void read_memory(const struct line *line, struct rights *rights)
{
    for (uint32_t i = 1; i < line->words; i++) {
        uint32_t base, bytes;
        if (rights->memory_ranges == MEMORY_RANGES || !pair(line->word[i], ',', ~0u, &base, &bytes))
            wrong(line, "memory: BASE,BYTES, at most 4 of them");
        else
            rights->memory[rights->memory_ranges++] = (struct memory_range){base, bytes};
    }
}

static void read_lines(const struct line *line, struct rights *rights)
{
    for (uint32_t i = 1; i < line->words; i++) {
        uint32_t irq;
        if (number(line->word[i], 10, 15, &irq))
            rights->interrupts |= 1u << irq;
        else
            wrong(line, "irqs: lines from 0 to 15");
    }
}

/* The bits of the names, which are in a table. */
static uint64_t named_bits(const struct line *line, const char *const *names, uint32_t count)
{
    uint64_t bits = 0;
    for (uint32_t i = 1; i < line->words; i++) {
        uint32_t n = 0;
        while (n < count && (!names[n] || strcmp(names[n], line->word[i])))
            n++;
        if (n == count)
            wrong(line, "there is no such call or trap");
        else
            bits |= 1ull << n;
    }
    return bits;
}

static uint64_t destinations(const struct line *line)
{
    uint64_t bits = 0;
    for (uint32_t i = 1; i < line->words; i++) {
        const struct service *service = service_by_name(line->word[i]);
        if (strcmp(line->word[i], "all") == 0)
            bits = ~0ull;
        else if (strcmp(line->word[i], "rs") == 0)
            bits |= 1ull << RS;
        else if (strcmp(line->word[i], "users") == 0)
            bits |= 1ull << USERS;
        else if (service)
            bits |= 1ull << service->rights.service;
        else
            wrong(line, "there is no such service to send to");
    }
    return bits;
}

static void read_pci(struct line *line, struct service *service)
{
    uint32_t first = 0, second = 0;
    int by_class = line->words == 4 && strcmp(line->word[1], "class") == 0;
    int right = by_class ? number(line->word[2], 16, 0xff, &first) && number(line->word[3], 16, 0xff, &second)
                         : line->words == 2 && pair(line->word[1], ':', 0xffff, &first, &second);
    if (!right || service->pci_ids == PCI_IDS)
        wrong(line, "pci: VENDOR:DEVICE or class CLASS SUBCLASS, at most 6 of them");
    else
        service->pci[service->pci_ids++] = (struct pci_id){first, second, by_class};
}

static void read_major(const struct line *line, struct service *service)
{
    if ((line->words == 2 || line->words == 4) && number(line->word[1], 10, 255, &service->major) &&
        (line->words == 2 || (number(line->word[2], 10, 255, &service->first_minor) &&
                              number(line->word[3], 10, 255, &service->last_minor))))
        return;
    wrong(line, "major: NUMBER, and the first and last minor number if they are not 0 and 255");
}

static int read_way(const char *word, uint32_t *way)
{
    static const char *const names[] = {"message", "direct", "trap", "bitmap", "kernel"}; /* BY_ in order */
    for (int i = 0; i < 5; i++) {
        if (strcmp(word, names[i]) == 0) {
            *way = 1u << i;
            return 1;
        }
    }
    return 0;
}

static int read_policy(const struct line *line, struct service *service)
{
    static const char *const names[] = {"restart", "leave", "reboot"}; /* in the order of enum policy */
    if (line->words == 3 && strcmp(line->word[1], "script") == 0 && strlen(line->word[2]) < SCRIPT_BYTES) {
        service->policy = SCRIPT;
        strcpy(service->script, line->word[2]);
        return 1;
    }
    for (int i = 0; i < 3 && line->words == 2; i++) {
        if (strcmp(line->word[1], names[i]) == 0) {
            service->policy = i;
            return 1;
        }
    }
    return 0;
}

/* What users' block and services' blocks have in common. Returns whether it was such a line. */
static int read_rights(struct line *line, struct rights *rights)
{
    const char *key = line->word[0];
    uint32_t value;
    if (strcmp(key, "calls") == 0)
        rights->calls |= named_bits(line, call_names, KERNEL_CALLS);
    else if (strcmp(key, "traps") == 0)
        rights->traps = named_bits(line, trap_names, sizeof trap_names / sizeof *trap_names);
    else if (strcmp(key, "send-to") == 0)
        rights->send_to |= destinations(line);
    else if (strcmp(key, "priority") == 0 && line->words == 2 && number(line->word[1], 10, 7, &value))
        rights->priority = value;
    else
        return 0;
    return 1;
}

static void read_service(struct line *line, struct service *service)
{
    const char *key = line->word[0];
    const char *word = line->words == 2 ? line->word[1] : "";
    uint32_t value;
    if (strcmp(key, "program") == 0 && *word && strlen(word) < PATH_BYTES)
        strcpy(service->program, word);
    else if (strcmp(key, "ports") == 0)
        read_ports(line, &service->rights);
    else if (strcmp(key, "memory") == 0)
        read_memory(line, &service->rights);
    else if (strcmp(key, "irqs") == 0)
        read_lines(line, &service->rights);
    else if (strcmp(key, "pci") == 0)
        read_pci(line, service);
    else if (strcmp(key, "pci-needed") == 0)
        service->pci_wanted = 1;
    else if (strcmp(key, "port-needed") == 0 && number(word, 16, 0xffff, &value))
        service->port_wanted = value;
    else if (strcmp(key, "by-hand") == 0)
        service->by_hand = 1;
    else if (strcmp(key, "card") == 0)
        service->card = 1;
    else if (strcmp(key, "major") == 0)
        read_major(line, service);
    else if (strcmp(key, "period") == 0 && number(word, 10, 1000000, &value))
        service->period = value * 1000;
    else if (strcmp(key, "arguments") == 0)
        for (uint32_t i = 1; i < line->words && service->arguments < ARGUMENTS; i++)
            strncpy(service->argument[service->arguments++], line->word[i], ARGUMENT_BYTES - 1);
    else if (strcmp(key, "number") != 0 && !(strcmp(key, "way") == 0 && read_way(word, &service->way)) &&
             !(strcmp(key, "on-failure") == 0 && read_policy(line, service)))
        wrong(line, "the line has no meaning");
}

static struct service *new_service(struct line *line)
{
    if (service_count == SERVICES || line->words != 2 || strlen(line->word[1]) >= NAME_BYTES ||
        service_by_name(line->word[1])) {
        wrong(line, "service: a new name of at most 15 characters, at most 64 of them");
        return NULL;
    }
    struct service *service = &services[service_count++];
    strcpy(service->name, line->word[1]);
    strcpy(service->rights.name, line->word[1]);
    service->rights.service = USERS; /* no number yet */
    service->rights.traps = 1u << IPC_SEND | 1u << IPC_RECEIVE | 1u << IPC_SENDREC | 1u << IPC_NOTIFY |
                            1u << IPC_SENDA;
    service->rights.send_to = 1ull << RS;
    service->rights.manager = RS;
    service->rights.priority = 2;
    service->way = BY_DIRECT_CALL;
    service->period = 2000000;
    service->last_minor = 255;
    service->endpoint = service->upgrader = NONE;
    return service;
}

/* Services without a fixed number get those from 4 on in their order. */
static void number_services(void)
{
    uint32_t next = FIRST_FREE_SERVICE;
    for (uint32_t i = 0; i < service_count; i++) {
        if (services[i].rights.service == USERS)
            services[i].rights.service = next++;
        if (next > USERS)
            service_count = i;
    }
}

/* All names and numbers, so that send-to can name services further down. */
static void read_names(const char *text, const char *end)
{
    struct line line = {0};
    struct service *service = NULL;
    uint32_t value;
    while ((text = next_line(text, end, &line))) {
        if (line.words == 0)
            continue;
        if (strcmp(line.word[0], "service") == 0)
            service = new_service(&line);
        else if (strcmp(line.word[0], "users") == 0)
            service = NULL;
        else if (service && strcmp(line.word[0], "number") == 0 && line.words == 2 &&
                 number(line.word[1], 10, FIRST_FREE_SERVICE - 1, &value) && value != RS)
            service->rights.service = value;
    }
    number_services();
}

void configuration_read(const char *text, uint32_t bytes)
{
    struct line line = {0};
    struct service *service = NULL;
    const char *end = text + bytes;
    read_names(text, end);
    users = (struct rights){.name = "init", .service = USERS, .traps = 1u << IPC_SENDREC, .manager = PM,
                            .priority = 4};
    while ((text = next_line(text, end, &line))) {
        if (line.words == 0)
            continue;
        if (strcmp(line.word[0], "service") == 0)
            service = line.words == 2 ? service_by_name(line.word[1]) : NULL;
        else if (strcmp(line.word[0], "users") == 0)
            service = NULL;
        else if (!read_rights(&line, service ? &service->rights : &users) && service)
            read_service(&line, service);
    }
}
