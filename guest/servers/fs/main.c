/* The file system: who asks, and what for. */

#include <string.h>
#include <tern/device.h>
#include <tern/pm.h>
#include "cache.h"
#include "outside.h"
#include "server.h"

#define STORE_AFTER 5000000u   /* microseconds until changed blocks are written */
#define RETRY_AFTER 1000u

static endpoint_t pm = NONE;   /* it is never replaced */

/* Only PM may say what PM says. */
static int is_pm(endpoint_t source)
{
    static struct process_info infos[SLOTS];
    if (pm == NONE && sys_getinfo(INFO_PROCESSES, infos, sizeof infos) > 0)
        for (int i = 0; i < SLOTS; i++)
            if (infos[i].endpoint != NONE && infos[i].service == PM)
                pm = infos[i].endpoint;
    return source == pm;
}

static int do_sync(void)
{
    int result = volumes_sync();
    int flushed = cache_flush(ALL_DEVICES);
    return result ? result : flushed;
}

static int from_pm(struct message *m)
{
    switch (m->type) {
    case PM_FS_FORK:
        return client_fork(m);
    case PM_FS_EXEC:
        return client_exec(m);
    case PM_FS_EXIT:
        return client_exit(m);
    case PM_FS_INTERRUPT:
        return client_interrupt(m);
    case PM_FS_READ_IMAGE:
        return read_image(m);
    case PM_FS_TIME:
        set_time((uint64_t)m->w[1] << 32 | m->w[0]);
        return 0;
    case FS_SYNC:
        return do_sync();
    default:
        return m->type > 0 ? -ENOSYS : NO_REPLY;
    }
}

static int sync_for(struct client *client, struct message *m)
{
    (void)client;
    (void)m;
    return do_sync();
}

static const struct {
    int32_t type;
    int (*handle)(struct client *client, struct message *m);
} handlers[] = {
    {FS_READ, do_read}, {FS_WRITE, do_write}, {FS_OPEN, do_open}, {FS_CLOSE, do_close}, {FS_SEEK, do_seek},
    {FS_STAT, do_stat}, {FS_LSTAT, do_stat}, {FS_FSTAT, do_fstat}, {FS_DIRECTORY, do_directory},
    {FS_LINK, do_name}, {FS_SYMLINK, do_name}, {FS_UNLINK, do_name}, {FS_RENAME, do_name},
    {FS_MKDIR, do_name}, {FS_RMDIR, do_name}, {FS_MKNOD, do_name}, {FS_READLINK, do_readlink},
    {FS_CHDIR, do_chdir}, {FS_GETCWD, do_getcwd}, {FS_CHMOD, do_attributes}, {FS_UTIME, do_attributes},
    {FS_ACCESS, do_attributes}, {FS_TRUNCATE, do_truncate}, {FS_DUP, do_dup}, {FS_FCNTL, do_fcntl},
    {FS_PIPE, do_pipe}, {FS_IOCTL, do_ioctl}, {FS_SELECT, do_select}, {FS_SYNC, sync_for},
    {FS_MOUNT, do_mount}, {FS_UMOUNT, do_umount}, {FS_STATFS, do_statfs}, {FS_READ_AT, do_transfer_at},
    {FS_WRITE_AT, do_transfer_at}};

static int from_client(struct client *client, struct message *m)
{
    if (client->waits != NOTHING)
        return -EBUSY; /* it did not wait for its answer */
    for (uint32_t i = 0; i < sizeof handlers / sizeof *handlers; i++)
        if (handlers[i].type == m->type)
            return handlers[i].handle(client, m);
    return -ENOSYS;
}

/* What is due when. */
static uint64_t store_at, alarm_at;

static void plan(void)
{
    uint64_t next = select_next(), time = microseconds();
    if (!store_at && cache_waiting())
        store_at = time + STORE_AFTER;
    if (store_at && store_at < next)
        next = store_at;
    if (devices_waiting() && time + RETRY_AFTER < next)
        next = time + RETRY_AFTER;
    if (next == ~0ull || (alarm_at && alarm_at <= next))
        return;
    sys_alarm(next > time ? (uint32_t)(next - time) : 1, 0);
    alarm_at = next;
}

static void rang(uint64_t at)
{
    uint64_t time = microseconds();
    (void)at;
    alarm_at = 0;
    devices_send();
    for (struct client *client = clients; client < clients + SLOTS; client++)
        if (client->endpoint != NONE && client->waits == SELECTION)
            select_check(client);
    if (store_at && time >= store_at) {
        store_at = 0;
        do_sync();
    }
    plan();
}

static int handle(struct message *m)
{
    struct client *client = client_of(m->source);
    int result;
    if (client)
        result = from_client(client, m);
    else if (m->type == DEVICE_REPLY)
        device_replied(m), result = NO_REPLY;
    else if (m->source == server_rs() && m->type == FS_DEVICE_UP)
        driver_up(m), result = NO_REPLY;
    else if (is_pm(m->source))
        result = from_pm(m);
    else
        result = m->type > 0 ? -ESRCH : NO_REPLY;
    /* Reading and closing change nothing that is due. */
    if (m->type != FS_READ || devices_waiting())
        plan();
    return result;
}

/* The boot archive becomes the root directory. Half of memory may be used for files there. */
static int open_root(void)
{
    struct boot_info boot;
    struct memory_info memory;
    uint32_t address = 0;
    struct volume *volume = volume_free();
    if (sys_getinfo(INFO_BOOT, &boot, sizeof boot) < 0
        || sys_getinfo(INFO_MEMORY, &memory, sizeof memory) < 0)
        return -EIO;
    uint32_t offset = boot.archive % PAGE;
    int result = sys_mapphysical(SELF, &address, (offset + boot.archive_bytes + PAGE - 1) & ~(PAGE - 1), 0,
                                 boot.archive - offset);
    if (result == 0)
        result = memory_open(volume, 0, memory.pages / 2);
    if (result)
        return result;
    root = volume->root;
    return archive_unpack(root, (const uint8_t *)address + offset, boot.archive_bytes);
}

int main(void)
{
    static const struct server server = {.other = handle, .alarm = rang};
    for (int i = 0; i < SLOTS; i++)
        clients[i].endpoint = NONE;
    for (int i = 0; i < GRANTS; i++)
        grants[i].to = NONE;
    int result = sys_setgrants(grants, GRANTS);
    if (result == 0)
        result = open_root();
    if (result) {
        log_line("the boot archive cannot be used: error %d", -result);
        server_end(1);
    }
    server_run(&server);
    return 0;
}
