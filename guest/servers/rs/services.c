/* The life of services. */

#include <stdio.h>
#include <string.h>
#include <tern/device.h>
#include <tern/fs.h>
#include <tern/hal.h>
#include <tern/pm.h>
#include <tern/server.h>
#include "rs.h"

/* PM gives services pids from here on; those of programs are lower. */
#define SERVICE_PIDS 30000

uint64_t now(void)
{
    struct times times;
    return sys_times(&times) == 0 ? times.microseconds : 0;
}

/* Arguments as tern/rs.h says. */
struct argument_list {
    uint32_t count;
    char *argv[4 + PORT_RANGES + MEMORY_RANGES + 16 + ARGUMENTS];
    char text[4 + PORT_RANGES + MEMORY_RANGES + 16][ARGUMENT_BYTES];
    uint32_t texts;
};

static char *new_text(struct argument_list *list)
{
    char *text = list->text[list->texts++];
    list->argv[list->count++] = text;
    return text;
}

static void list_rights(struct argument_list *list, const struct rights *rights)
{
    static const char *const ways[] = {[BY_MESSAGE] = "message", [BY_DIRECT_CALL] = "direct",
                                       [BY_TRAP] = "trap", [BY_BITMAP] = "bitmap", [BY_KERNEL] = "kernel"};
    snprintf(new_text(list), ARGUMENT_BYTES, "way=%s", ways[rights->ways]);
    for (uint32_t i = 0; i < rights->port_ranges; i++)
        snprintf(new_text(list), ARGUMENT_BYTES, "port=%x-%x", rights->ports[i].first, rights->ports[i].last);
    for (uint32_t i = 0; i < rights->memory_ranges; i++)
        snprintf(new_text(list), ARGUMENT_BYTES, "memory=%x,%x", (unsigned)rights->memory[i].base,
                 (unsigned)rights->memory[i].bytes);
    for (int line = 0; line < 16; line++)
        if (rights->interrupts >> line & 1)
            snprintf(new_text(list), ARGUMENT_BYTES, "irq=%d", line);
}

/* A port without a device reads as all ones. */
static int answers(uint16_t port)
{
    uint32_t value = 0xff;
    hal_call(HAL_IN_BYTE, port, &value, NULL);
    return value != 0xff;
}

/* Creates its process. *has_device says whether there is the device that it needs. */
static int create(struct service *service, int *has_device)
{
    static struct argument_list list;
    struct rights rights = service->rights;
    char pci[ARGUMENT_BYTES];
    uint32_t bytes = service->image_bytes;
    const uint8_t *image = service->image ? service->image : archive_find(service->program, &bytes);
    int device = service->pci_ids && pci_assign(service, &rights, pci, sizeof pci);
    *has_device =
        (device || !service->pci_wanted) && (!service->port_wanted || answers(service->port_wanted));
    if (!*has_device)
        return -ENODEV;
    if (!image)
        return -ENOENT;
    rights.ways = service->way_wanted ? service->way_wanted : service->way;
    list.count = list.texts = 0;
    list.argv[list.count++] = service->program;
    list_rights(&list, &rights);
    if (device)
        list.argv[list.count++] = pci;
    if (service->saving)
        list.argv[list.count++] = "resume";
    for (uint32_t i = 0; i < service->arguments; i++)
        list.argv[list.count++] = service->argument[i];
    list.argv[list.count] = NULL;
    return program_start(service->name, image, bytes, &rights, list.argv, &service->endpoint);
}

/* A new FS, PM or network server knows nothing: it hears of all. */
static void tell_everything(const struct service *listener)
{
    for (uint32_t i = 0; i < service_count; i++) {
        if (listener->rights.service == PM)
            services[i].tell_pm = services[i].endpoint != NONE;
        if (listener->rights.service == FS)
            services[i].tell_fs = services[i].state == UP && services[i].major != 0;
        if (strcmp(listener->name, NET_NAME) == 0)
            services[i].tell_net = services[i].state == UP && services[i].card;
    }
}

/* It has no process now, and gets none until somebody asks for it. FS and the network server, which wait for
   a driver that is replaced, must not wait for this one. */
static void leave_down(struct service *service)
{
    service->state = DOWN;
    service->endpoint = NONE;
    service->tell_fs = service->has_served && service->major != 0;
    service->tell_net = service->has_served && service->card;
}

void service_start(struct service *service)
{
    int has_device;
    int result = create(service, &has_device);
    if (result) {
        if (has_device)
            log_line("%s cannot be started: error %d", service->name, -result);
        leave_down(service);
        return;
    }
    service->state = STARTING;
    service->since = now();
    service->next = service->since + (service->period ? service->period : PATIENCE);
    service->unanswered = 0;
    service->fail = 0;
    service->saving = 0;
    service->tell_pm = 1;
    tell_everything(service);
}

void service_is_ready(struct service *service)
{
    service->state = UP;
    service->has_served = 1;
    service->tell_fs = service->major != 0;
    service->tell_net = service->card;
    finish_upgrade(service, 0);
}

/* Ends its process, and tells PM. */
static void end_process(struct service *service)
{
    if (service->endpoint == NONE)
        return;
    struct message m = {.type = PM_SERVICE_DOWN, .w = {service->endpoint}};
    sys_destroy(service->endpoint, NULL);
    service->endpoint = NONE;
    service->tell_pm = service->tell_fs = service->tell_net = 0;
    server_post(SERVICE(PM), &m);
}

void service_stop(struct service *service)
{
    end_process(service);
    service->untold = 0;
    finish_upgrade(service, -EDEADEND);
    leave_down(service);
}

static void drop_image(struct service *service)
{
    if (service->image)
        sys_unmap(SELF, (uint32_t)service->image, (service->image_bytes + 0xfff) & ~0xfffu);
    service->image = NULL;
}

/* The first restart comes at once, later ones after a time that doubles. */
static uint32_t back_off(const struct service *service)
{
    uint32_t delay = FIRST_RESTART;
    if (service->failures <= 1)
        return 0;
    for (uint32_t i = 2; i < service->failures && delay < LAST_RESTART; i++)
        delay *= 2;
    return delay < LAST_RESTART ? delay : LAST_RESTART;
}

void service_restart(struct service *service)
{
    service->untold = 0;
    service->restarts++;
    service_start(service);
}

/* The process that waits for failures has a script executed, which starts or stops the service. If neither
   comes in time, RS restarts it. */
static void ask_script(struct service *service, int32_t cause)
{
    log_line("%s failed (%d), %s decides", service->name, (int)cause, service->script);
    service->state = WAITING;
    service->since = now();
    service->next = service->since + SCRIPT_PATIENCE;
    service->untold = 1;
}

void service_failed(struct service *service, int32_t cause)
{
    int upgraded = service->upgrader != NONE;
    service->cause = cause;
    if (now() - service->since > GOOD_BEHAVIOUR)
        service->failures = 0;
    service->failures++;
    end_process(service);
    if (upgraded) {
        /* The new program does not even get ready: back to that of the archive. */
        drop_image(service);
        finish_upgrade(service, -EIO);
    }
    service->saving = 0;
    if (service->policy == REBOOT) {
        log_line("%s failed (%d), and nothing goes on without it", service->name, (int)cause);
        sys_abort(ABORT_RESET, 0);
    }
    if (service->policy == LEAVE) {
        log_line("%s failed (%d)", service->name, (int)cause);
        leave_down(service);
        return;
    }
    if (service->policy == SCRIPT) {
        ask_script(service, cause);
        return;
    }
    uint32_t delay = back_off(service);
    log_line("%s failed (%d), restarts in %u ms", service->name, (int)cause, (unsigned)(delay / 1000));
    service->state = WAITING;
    service->since = now();
    service->next = service->since + delay;
    if (delay == 0)
        service_restart(service);
}

void service_replace(struct service *service)
{
    end_process(service);
    service_start(service);
    if (service->endpoint == NONE)
        service_failed(service, -3);
}

static int tell_pm(const struct service *service)
{
    struct message m = {.type = PM_SERVICE_UP, .w = {service->endpoint,
                        SERVICE_PIDS + service->rights.service}};
    memcpy(&m.w[2], service->name, NAME_BYTES);
    return server_post(SERVICE(PM), &m);
}

static int tell_fs(const struct service *service)
{
    struct message m = {.type = FS_DEVICE_UP, .w = {service->major, service->endpoint, service->first_minor,
                                                service->last_minor}};
    return server_post(SERVICE(FS), &m);
}

static int tell_net(const struct service *service)
{
    struct message m = {.type = CARD_UP, .w = {service->rights.service, service->endpoint}};
    const struct service *net = service_by_name(NET_NAME);
    memcpy(&m.w[2], service->name, NAME_BYTES);
    return net && net->endpoint != NONE ? server_post(net->endpoint, &m) : 0;
}

void announce(void)
{
    for (uint32_t i = 0; i < service_count; i++) {
        struct service *service = &services[i];
        struct message fail = {.type = RS_FAIL, .w = {service->fail}};
        if (service->tell_pm && service->endpoint != NONE && tell_pm(service) == 0)
            service->tell_pm = 0;
        if (service->tell_fs && tell_fs(service) == 0)
            service->tell_fs = 0;
        if (service->tell_net && tell_net(service) == 0)
            service->tell_net = 0;
        if (service->fail && server_post(service->endpoint, &fail) == 0)
            service->fail = 0;
    }
}

/* A ping, or the end for a service that has not answered the last two. */
static void ping(struct service *service)
{
    if (service->unanswered == 2) {
        service_failed(service, -1);
        return;
    }
    service->unanswered++;
    ipc_notify(service->endpoint);
    /* Multiples of the period, so that services with equal periods are pinged at once, and the processor
       sleeps in between. */
    service->next = (now() / service->period + 1) * service->period;
}

static void due(struct service *service)
{
    switch (service->state) {
    case WAITING:
        service_restart(service);
        break;
    case STARTING:
        if (now() - service->since > PATIENCE) {
            service_failed(service, -1);
            break;
        }
        /* FALLTHROUGH */
    case UP:
        if (service->period)
            ping(service);
        else
            service->next = now() + PATIENCE;
        break;
    case DOWN:
        break;
    }
}

uint64_t services_due(void)
{
    uint64_t next = ~0ull;
    for (uint32_t i = 0; i < service_count; i++) {
        if (services[i].state != DOWN && services[i].next <= now())
            due(&services[i]);
        if (services[i].state != DOWN && services[i].next < next)
            next = services[i].next;
    }
    return next;
}
