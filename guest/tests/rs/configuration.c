/* How RS reads its configuration, in a program of the host: the system's own file has no faulty line, and
   faulty lines are reported and change nothing. */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../servers/rs/rs.h"

#define CHECK(condition) \
    ((condition) ? 0 : (printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition), failures++))

static int failures, complaints;
static int wanted; /* complaints, which then are not shown */

void log_line(const char *format, ...)
{
    va_list list;
    complaints++;
    if (wanted)
        return;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
}

static void forget(void)
{
    memset(services, 0, sizeof services);
    service_count = 0;
    complaints = 0;
}

static void check_own(const char *path)
{
    static char text[65536];
    FILE *file = fopen(path, "r");
    size_t bytes = file ? fread(text, 1, sizeof text, file) : 0;
    CHECK(bytes > 0 && bytes < sizeof text);
    configuration_read(text, bytes);
    CHECK(complaints == 0);
    const struct service *pm = service_by_name("pm"), *fs = service_by_name("fs"),
                         *ds = service_by_name("ds");
    CHECK(pm && pm->rights.service == PM && pm->policy == REBOOT);
    CHECK(fs && fs->rights.service == FS);
    CHECK(ds && ds->rights.service == DS);
    CHECK(users.traps == 1u << IPC_SENDREC && users.calls && !(users.calls & 1u << SYS_PRIVCTL));
    for (uint32_t i = 0; i < service_count; i++) {
        const struct service *service = &services[i];
        CHECK(service->program[0]);
        CHECK(service->rights.send_to & 1u << RS);
        CHECK(!(service->rights.calls & 1u << SYS_PRIVCTL));
        CHECK(service == pm || !(service->rights.calls & 1u << SYS_CREATE));
        for (uint32_t k = 0; k < i; k++)
            CHECK(service->rights.service != services[k].rights.service);
    }
}

static void check_lines(void)
{
    static const char text[] =
        "service a\n"
        "\tprogram  /sbin/a # its program\n"
        " calls devio irqctl\n"
        " send-to b users\n"
        " ports 3f8-3ff 60\n"
        " memory fee00000,1000\n"
        " irqs 4 15\n"
        " pci 1af4:1001\n pci class 01 01\n pci-needed\n port-needed 300\n"
        " way trap\n major 4 64 65\n period 500\n on-failure leave\n by-hand\n priority 7\n"
        " arguments speed=9600 x\n"
        "service b\n"
        " number 2\n";
    forget();
    configuration_read(text, sizeof text - 1);
    const struct service *a = service_by_name("a");
    CHECK(complaints == 0 && service_count == 2 && a && service_by_name("b")->rights.service == FS);
    CHECK(strcmp(a->program, "/sbin/a") == 0 && a->rights.service == FIRST_FREE_SERVICE);
    CHECK(a->rights.calls == (1ull << SYS_DEVIO | 1ull << SYS_IRQCTL));
    CHECK(a->rights.send_to == (1ull << RS | 1ull << FS | 1ull << USERS));
    CHECK(a->rights.port_ranges == 2 && a->rights.ports[0].first == 0x3f8 &&
          a->rights.ports[0].last == 0x3ff);
    CHECK(a->rights.ports[1].first == 0x60 && a->rights.ports[1].last == 0x60);
    CHECK(a->rights.memory_ranges == 1 && a->rights.memory[0].base == 0xfee00000 &&
          a->rights.memory[0].bytes == 0x1000);
    CHECK(a->rights.interrupts == (1u << 4 | 1u << 15) && a->rights.priority == 7);
    CHECK(a->pci_ids == 2 && a->pci_wanted && !a->pci[0].by_class && a->pci[0].second == 0x1001 &&
          a->pci[1].by_class && a->port_wanted == 0x300);
    CHECK(a->way == BY_TRAP && a->major == 4 && a->first_minor == 64 && a->last_minor == 65);
    CHECK(a->period == 500000 && a->policy == LEAVE && a->by_hand);
    CHECK(a->arguments == 2 && strcmp(a->argument[0], "speed=9600") == 0);
}

static void check_faults(void)
{
    static const char *const faulty[] = {
        " ports 3ff-3f8", " ports 10000", " ports 1 2 3 4 5 6 7 8 9", " irqs 16", " calls fly", " traps all",
        " send-to nobody", " memory 1000,zz", " way flying", " on-failure panic", " on-failure script", " on-failure script /a /b",
        " on-failure leave /a", " major x", " period -",
        " nonsense", " pci 1af4", " port-needed 10000", " pci class 1", "service", "service a",
        "service a-name-that-is-too-long"};
    for (size_t i = 0; i < sizeof faulty / sizeof *faulty; i++) {
        char text[128];
        forget();
        int bytes = sprintf(text, "service a\n%s\n program /sbin/a\n", faulty[i]);
        configuration_read(text, bytes);
        if (complaints == 0)
            printf("no complaint about: %s\n", faulty[i]), failures++;
        CHECK(service_count == 1 && services[0].rights.port_ranges <= PORT_RANGES);
        CHECK(services[0].rights.send_to == 1ull << RS && services[0].rights.calls == 0);
    }
}

/* No text may do harm: random changes of a right one. */
static void check_noise(void)
{
    static char text[4096];
    unsigned seed = 1;
    for (int round = 0; round < 20000; round++) {
        int bytes = sprintf(text, "service a\n ports 3f8-3ff 60\n calls devio\n memory 1000,1000\nusers\n"
                                  " send-to a rs\nservice b\n number 1\n pci class 01 01\n major 4 1 2\n");
        for (int change = 0; change < 6; change++) {
            seed = seed * 1664525 + 1013904223;
            text[(seed >> 8) % bytes] = "\n \t#-:,af0\377x"[seed >> 24 & 7];
        }
        forget();
        configuration_read(text, bytes);
        CHECK(service_count <= SERVICES);
    }
}

int main(int argc, char **argv)
{
    check_own(argc > 1 ? argv[1] : "etc/services");
    check_lines();
    wanted = 1;
    check_faults();
    check_noise();
    return failures ? 1 : 0;
}
