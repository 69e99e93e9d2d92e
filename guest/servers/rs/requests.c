/* Requests to RS. */

#include <string.h>
#include <tern/server.h>
#include "rs.h"

/* The service whose name is in the caller's memory. */
static struct service *named(const struct message *m)
{
    char name[NAME_BYTES] = {0};
    if (m->w[1] == 0 || m->w[1] >= NAME_BYTES || sys_copy(m->source, m->w[0], SELF, (uint32_t)name, m->w[1]))
        return NULL;
    return service_by_name(name);
}

static int list(struct message *m)
{
    struct service_info info;
    uint32_t room = m->w[1] / sizeof info;
    for (uint32_t i = 0; i < service_count && i < room; i++) {
        const struct service *service = &services[i];
        memset(&info, 0, sizeof info);
        strcpy(info.name, service->name);
        info.number = service->rights.service;
        info.endpoint = service->endpoint;
        info.state = service->state;
        info.restarts = service->restarts;
        info.ways = service->way_wanted ? service->way_wanted : service->way;
        info.cause = service->cause;
        if (sys_copy(SELF, (uint32_t)&info, m->source, m->w[0] + i * sizeof info, sizeof info))
            return -EFAULT;
    }
    m->w[0] = (service_count < room ? service_count : room) * sizeof info;
    return 0;
}

/* The process that waits for failures which scripts decide, and its buffer. */
static endpoint_t watcher = NONE;
static uint32_t watcher_buffer;

/* Returns whether the failure could be given away. */
static int tell_failure(const struct service *service)
{
    struct service_failure failure = {.cause = service->cause, .failures = service->failures};
    struct message m = {.w = {0}};
    endpoint_t to = watcher;
    strcpy(failure.name, service->name);
    strcpy(failure.script, service->script);
    watcher = NONE;
    int result = sys_copy(SELF, (uint32_t)&failure, to, watcher_buffer, sizeof failure);
    return server_reply(to, result, &m) && result == 0;
}

void tell_failures(void)
{
    for (uint32_t i = 0; i < service_count && watcher != NONE; i++)
        if (services[i].untold && tell_failure(&services[i]))
            services[i].untold = 0;
}

static int wait_for_failure(const struct message *m)
{
    struct message end = {.w = {0}};
    /* The one before may be gone; if it is not, it hears that another one waits. */
    if (watcher != NONE)
        server_reply(watcher, -EBUSY, &end);
    watcher = m->source;
    watcher_buffer = m->w[0];
    return NO_REPLY;
}

/* The path is in the caller's memory. */
static int set_script(struct service *service, const struct message *m)
{
    char path[SCRIPT_BYTES] = {0};
    /* PM and FS run the scripts. */
    if (service->policy == REBOOT)
        return -EPERM;
    if (m->w[3] >= SCRIPT_BYTES)
        return -ENAMETOOLONG;
    if (m->w[3]) {
        int result = sys_copy(m->source, m->w[2], SELF, (uint32_t)path, m->w[3]);
        if (result)
            return result;
    }
    memcpy(service->script, path, sizeof path);
    service->policy = *path ? SCRIPT : RESTART;
    return 0;
}

static int decided(struct service *service)
{
    if (service->state == WAITING && service->policy == SCRIPT && !service->untold) {
        log_line("%s is restarted: its script has left that to RS", service->name);
        service_restart(service);
    }
    return 0;
}

static int up(struct service *service)
{
    if (service->state == WAITING) {
        service_restart(service);
        return service->endpoint == NONE ? -ENODEV : 0;
    }
    if (service->state != DOWN)
        return -EBUSY;
    service->failures = 0;
    service_start(service);
    return service->endpoint == NONE ? -ENODEV : 0;
}

/* Takes the new program's image out of the caller's memory. */
static int take_image(struct service *service, const struct message *m)
{
    uint32_t bytes = m->w[3], address = 0;
    if (bytes == 0) {
        service->image = NULL;
        return 0;
    }
    if (bytes > IMAGE_BYTES_MAX)
        return -EFBIG;
    uint32_t pages = (bytes + 0xfff) & ~0xfffu;
    int result = sys_map(SELF, &address, pages, MAP_WRITE, NULL);
    if (result)
        return result;
    result = sys_copy(m->source, m->w[2], SELF, address, bytes);
    if (result) {
        sys_unmap(SELF, address, pages);
        return result;
    }
    if (service->image)
        sys_unmap(SELF, (uint32_t)service->image, (service->image_bytes + 0xfff) & ~0xfffu);
    service->image = (uint8_t *)address;
    service->image_bytes = bytes;
    return 0;
}

static int upgrade(struct service *service, struct message *m)
{
    struct message save = {.type = RS_SAVE};
    /* Those that are never replaced keep their state in memory only. */
    if (service->policy == REBOOT)
        return -EPERM;
    if (service->state != UP || service->upgrader != NONE)
        return -EBUSY;
    int result = take_image(service, m);
    if (result == 0)
        result = server_post(service->endpoint, &save);
    if (result)
        return result;
    service->upgrader = m->source;
    service->saving = 1;
    return NO_REPLY;
}

void finish_upgrade(struct service *service, int32_t result)
{
    struct message m = {.w = {0}};
    if (service->upgrader == NONE)
        return;
    server_reply(service->upgrader, result, &m);
    service->upgrader = NONE;
}

static int set_way(struct service *service, uint32_t way)
{
    if (way & (way - 1) || way > BY_KERNEL)
        return -EINVAL;
    service->way_wanted = way;
    return 0;
}

static int fault(struct service *service, uint32_t what)
{
    if (service->state != UP || what < FAULT_POINTER || what > FAULT_LATE)
        return -EINVAL;
    service->fail = what;
    return 0;
}

/* What a service itself says. */
static int from_service(struct service *service, struct message *m)
{
    switch (m->type) {
    case RS_READY:
        service_is_ready(service);
        return 0;
    case RS_EXIT:
        if (service->saving)
            service_replace(service);
        else
            service_failed(service, -3);
        return NO_REPLY;
    default:
        if (m->type > 0)
            return -EPERM;
        /* The answer to RS_SAVE of a service that could not save its state, or one to news. */
        if (m->type < 0 && service->saving) {
            service->saving = 0;
            finish_upgrade(service, m->type);
        }
        return NO_REPLY;
    }
}

static int from_user(struct message *m)
{
    if (m->type == RS_LIST)
        return list(m);
    if (m->type == RS_FAILURE)
        return wait_for_failure(m);
    struct service *service = named(m);
    if (!service)
        return -ENOENT;
    switch (m->type) {
    case RS_UP:
        return up(service);
    case RS_DOWN:
        /* Nothing runs without PM and FS, not even the command that would start them again. */
        if (service->policy == REBOOT)
            return -EPERM;
        service_stop(service);
        return 0;
    case RS_RESTART:
        if (service->state != UP && service->state != STARTING)
            return -EINVAL;
        service_failed(service, -2);
        return 0;
    case RS_UPGRADE:
        return upgrade(service, m);
    case RS_WAYS:
        return set_way(service, m->w[2]);
    case RS_FAULT:
        return fault(service, m->w[2]);
    case RS_SCRIPT:
        return set_script(service, m);
    case RS_DECIDED:
        return decided(service);
    default:
        return -ENOSYS;
    }
}

int handle_request(struct message *m)
{
    struct service *service = service_by_endpoint(m->source);
    if (service)
        return from_service(service, m);
    /* Replies of PM and FS to news, and of processes that are gone: nobody waits for them. */
    return m->type > 0 ? from_user(m) : NO_REPLY;
}
