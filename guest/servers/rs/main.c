/* The reincarnation server: starts the other services, gives them their rights, watches and replaces them. It
   never waits for any of them: its only calls are those to the kernel, and its messages go by SENDA. */

#include <string.h>
#include <tern/pm.h>
#include <tern/server.h>
#include "rs.h"

#define INIT_PATIENCE 2000000u /* services that are not ready by then must not keep the system from
                                  starting */

static int init_started;

static void answered(endpoint_t source)
{
    struct service *service = service_by_endpoint(source);
    if (service)
        service->unanswered = 0;
}

static void take_events(void)
{
    struct event event;
    /* Each process has at most one exception, and refusals are bounded by the kernel; the bound here is for
       the time that one round takes. */
    for (int i = 0; i < SLOTS && sys_getevent(&event) == 0 && event.process != NONE; i++) {
        struct service *service = service_by_endpoint(event.process);
        if (!service)
            continue;
        log_line("%s: %s %u at %x, address %x", service->name,
                 event.what == EVENT_EXCEPTION ? "exception" : "refused, error", (unsigned)event.vector,
                 (unsigned)event.eip, (unsigned)event.address);
        service_failed(service, event.what == EVENT_EXCEPTION ? (int32_t)event.vector : -4);
    }
}

/* PM's first process: empty, with the rights of users. PM loads the program and passes the rights on by
   forks. */
static void start_init(void)
{
    endpoint_t process;
    struct message m = {.type = PM_SERVICE_UP, .w = {NONE, 1}};
    if (sys_create("init", &process) || sys_privctl(process, &users)) {
        log_line("init cannot be created");
        return;
    }
    m.w[0] = process;
    memcpy(&m.w[2], users.name, NAME_BYTES);
    if (server_post(SERVICE(PM), &m))
        log_line("init cannot be started");
    init_started = 1;
}

static int all_started(void)
{
    for (uint32_t i = 0; i < service_count; i++)
        if (services[i].state == STARTING)
            return 0;
    return 1;
}

/* When the kernel's alarm rings; 0: it is not set. */
static uint64_t alarm_at;

static void alarm_rang(uint64_t microseconds)
{
    (void)microseconds;
    alarm_at = 0;
}

static void set_alarm(uint64_t at)
{
    uint64_t time = now();
    if (at == alarm_at || at == ~0ull)
        return;
    sys_alarm(at > time ? (uint32_t)(at - time) : 1, 0);
    alarm_at = at;
}

static void run(void)
{
    const struct server server = {.other = handle_request, .alarm = alarm_rang, .event = take_events,
                                  .notified = answered};
    for (;;) {
        uint64_t next = services_due();
        announce();
        tell_failures();
        if (!init_started && (all_started() || now() >= INIT_PATIENCE))
            start_init();
        if (!init_started && next > INIT_PATIENCE)
            next = INIT_PATIENCE;
        set_alarm(next);
        server_step(&server, 0);
    }
}

int main(void)
{
    struct boot_info boot = {0};
    uint32_t bytes;
    if (sys_getinfo(INFO_BOOT, &boot, sizeof boot) < 0 || archive_open(&boot)) {
        log_line("there is no boot archive");
        sys_abort(ABORT_OFF, 1);
    }
    const uint8_t *text = archive_find("/etc/services", &bytes);
    if (!text) {
        log_line("/etc/services is not in the boot archive");
        sys_abort(ABORT_OFF, 1);
    }
    configuration_read((const char *)text, bytes);
    pci_scan();
    for (uint32_t i = 0; i < service_count; i++)
        if (!services[i].by_hand)
            service_start(&services[i]);
    run();
    return 0;
}
