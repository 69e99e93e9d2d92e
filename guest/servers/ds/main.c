/* The data store: names and values, which outlive the services that put them there. */

#include <string.h>
#include <tern/lib.h>
#include <tern/rs.h>
#include <tern/server.h>

#define ENTRIES 64
#define NAME_MAX_BYTES 31
#define VALUE_BYTES 4096

static struct entry {
    char name[NAME_MAX_BYTES + 1]; /* empty: the entry is free */
    uint32_t bytes;
    uint8_t value[VALUE_BYTES];
} entries[ENTRIES];

static int read_name(const struct message *m, char *name)
{
    memset(name, 0, NAME_MAX_BYTES + 1);
    if (m->w[1] == 0 || m->w[1] > NAME_MAX_BYTES)
        return -EINVAL;
    return sys_copy(m->source, m->w[0], SELF, (uint32_t)name, m->w[1]) ? -EFAULT : 0;
}

/* The entry of this name; with "" a free one. */
static struct entry *find(const char *name)
{
    for (uint32_t i = 0; i < ENTRIES; i++)
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    return NULL;
}

/* The entry that the request in `m` names, or NULL and an error in *result. */
static struct entry *find_named(struct message *m, int *result)
{
    char name[NAME_MAX_BYTES + 1];
    *result = read_name(m, name);
    if (*result)
        return NULL;
    struct entry *entry = name[0] ? find(name) : NULL;
    if (!entry)
        *result = -ENOENT;
    return entry;
}

static int put(struct message *m)
{
    static uint8_t value[VALUE_BYTES];
    char name[NAME_MAX_BYTES + 1];
    uint32_t bytes = m->w[3];
    int result = read_name(m, name);
    if (result)
        return result;
    if (bytes > VALUE_BYTES || name[0] == 0)
        return -EINVAL;
    if (bytes && sys_copy(m->source, m->w[2], SELF, (uint32_t)value, bytes))
        return -EFAULT;
    struct entry *entry = find(name);
    if (!entry)
        entry = find("");
    if (!entry)
        return -ENOSPC;
    strcpy(entry->name, name);
    memcpy(entry->value, value, bytes);
    entry->bytes = bytes;
    return 0;
}

static int get(struct message *m)
{
    int result;
    struct entry *entry = find_named(m, &result);
    if (!entry)
        return result;
    uint32_t bytes = entry->bytes < m->w[3] ? entry->bytes : m->w[3];
    if (bytes && sys_copy(SELF, (uint32_t)entry->value, m->source, m->w[2], bytes))
        return -EFAULT;
    m->w[0] = bytes;
    return 0;
}

static int delete(struct message *m)
{
    int result;
    struct entry *entry = find_named(m, &result);
    if (entry)
        memset(entry, 0, sizeof *entry);
    return result;
}

/* There is no place to which its own state could go, so it is not upgraded in place. */
static int save(void)
{
    return -EPERM;
}

int main(void)
{
    static const struct server_request requests[] = {
        {DS_PUT, put}, {DS_GET, get}, {DS_DELETE, delete}, {0, NULL}};
    static const struct server server = {.requests = requests, .save = save};
    server_run(&server);
    return 0;
}
