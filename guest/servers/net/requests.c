/* Requests of programs, which come through FS (tern/device.h). Those that must wait are kept, and tried again
   when their socket has changed. */

#include <string.h>
#include <tern/fs.h>
#include <tern/lib.h>
#include <tern/server.h>
#include "../../drivers/common/character.h"
#include "server.h"

#define PENDING_MAX 80              /* FS has 64 requests at a time */
#define WAIT 4u                     /* of DEVICE_SELECT */
#define WAITS 0x7fffffff            /* the result of an attempt that cannot be done now */

static struct pending {
    endpoint_t from;
    uint32_t type, number, minor;
    uint32_t request;               /* of an IOCTL */
    uint32_t grant, bytes, flags, done;
} pending[PENDING_MAX];
static uint32_t pending_used;
static uint32_t changed[(SOCKETS + 31) / 32];
static int any_changed;

static uint8_t data[NET_MESSAGE_MAX];

void socket_changed(struct socket *socket)
{
    changed[(socket - sockets) / 32] |= 1u << (socket - sockets) % 32;
    any_changed = 1;
}

static int get(const struct pending *p, uint32_t offset, void *to, uint32_t bytes)
{
    return bytes && sys_safecopy(p->from, p->grant, offset, to, bytes, GRANT_READ) ? -EFAULT : 0;
}

static int put(const struct pending *p, uint32_t offset, const void *from, uint32_t bytes)
{
    return bytes && sys_safecopy(p->from, p->grant, offset, (void *)from, bytes, GRANT_WRITE) ? -EFAULT : 0;
}

/* ---- Streams: data is copied between FS's buffer and the ring, without another copy ---- */

static int ring_to_program(const struct pending *p, const struct ring *ring, uint32_t offset, uint32_t bytes)
{
    uint32_t part = least(bytes, RING_BYTES - ring->first);
    int result = put(p, offset, ring->data + ring->first, part);
    return result ? result : put(p, offset + part, ring->data, bytes - part);
}

static int program_to_ring(const struct pending *p, struct ring *ring, uint32_t offset, uint32_t bytes)
{
    uint32_t at = (ring->first + ring->used) % RING_BYTES, part = least(bytes, RING_BYTES - at);
    int result = get(p, offset, ring->data + at, part);
    return result ? result : get(p, offset + part, ring->data, bytes - part);
}

static int read_stream(const struct pending *p, struct socket *s, uint32_t offset, uint32_t bytes, int peek)
{
    if (s->no_more)
        return 0;
    if (!s->in.used) {
        if (s->error)
            return socket_take_error(s);
        if (s->state == NET_LISTENING || (s->state == NET_CLOSED && !s->peer_port))
            return -ENOTCONN;
        return tcp_at_end(s) ? 0 : WAITS;
    }
    bytes = least(bytes, s->in.used);
    int result = ring_to_program(p, &s->in, offset, bytes);
    if (result)
        return result;
    if (!peek) {
        ring_drop(&s->in, bytes);
        tcp_read(s);
    }
    return (int)bytes;
}

/* A write is over when all of it is in the ring. */
static int write_stream(struct pending *p, struct socket *s, uint32_t offset, uint32_t bytes)
{
    int room = tcp_can_write(s);
    if (room < 0) {
        int error = s->error ? socket_take_error(s) : room;
        return p->done ? (int)p->done : error;
    }
    uint32_t part = least(bytes - p->done, (uint32_t)room);
    if (part) {
        if (program_to_ring(p, &s->out, offset + p->done, part))
            return p->done ? (int)p->done : -EFAULT;
        s->out.used += part;
        p->done += part;
        tcp_output(s);
    }
    if (p->done == bytes || (p->done && p->flags))
        return (int)p->done;
    return WAITS;
}

/* ---- Datagrams ---- */

/* Reads the header that NET_SEND and NET_RECEIVE have before the data. */
static int take_header(struct pending *p, struct net_message *header)
{
    int result = get(p, 0, header, sizeof *header);
    if (result == 0 && header->flags & NET_DONTWAIT)
        p->flags = O_NONBLOCK;
    return result;
}

static int receive(struct pending *p, struct socket *s, int with_header)
{
    struct net_message header = {.bytes = 0};
    uint32_t offset = with_header ? sizeof header : 0, room = p->bytes - offset;
    int result;
    if (with_header && (result = take_header(p, &header)))
        return result;
    int peek = header.flags & NET_PEEK;
    if (s->kind == MINOR_TCP) {
        header.address = (struct net_address){swap32(s->peer), swap16(s->peer_port), 0};
        result = read_stream(p, s, offset, room, peek);
        header.bytes = result;
    } else {
        result = datagram_get(s, &header, data, least(room, sizeof data), peek);
        if (result == -EAGAIN)
            return s->no_more ? 0 : WAITS;
        if (result > 0 && put(p, offset, data, result))
            return -EFAULT;
    }
    return result >= 0 && result != WAITS && with_header && put(p, 0, &header, sizeof header) ? -EFAULT
                                                                                              : result;
}

static int send(struct pending *p, struct socket *s, int with_header)
{
    struct net_message header = {.bytes = 0};
    uint32_t offset = with_header ? sizeof header : 0, bytes = p->bytes - offset;
    int result;
    if (with_header && (result = take_header(p, &header)))
        return result;
    if (s->kind == MINOR_TCP)
        return write_stream(p, s, offset, bytes);
    if (s->error)
        return socket_take_error(s);
    if (bytes > sizeof data)
        return -EMSGSIZE;
    if ((result = get(p, offset, data, bytes)))
        return result;
    if (s->kind == MINOR_UDP)
        return udp_send(s, &header.address, data, bytes);
    uint32_t to = header.address.address ? swap32(header.address.address) : s->peer;
    if (!to)
        return -EDESTADDRREQ;
    result = socket_memory(s);
    return result ? result : icmp_send(s, to, data, bytes);
}

/* ---- IOCTLs ---- */

static int connect(struct pending *p, struct socket *s)
{
    struct net_address to;
    int result = 0;
    if (!p->done) {
        result = get(p, 0, &to, sizeof to);
        if (result == 0)
            result = socket_connect(s, swap32(to.address), swap16(to.port));
        p->done = 1;
        if (result || s->kind != MINOR_TCP)
            return result;
    }
    if (s->state == NET_SYN_SENT || s->state == NET_SYN_RECEIVED)
        return WAITS;
    return s->error ? socket_take_error(s) : 0;
}

static int accept(struct pending *p, struct socket *s)
{
    struct net_accepted accepted;
    int result = s->kind == MINOR_TCP ? tcp_accept(s, &accepted) : -EOPNOTSUPP;
    if (result == -EAGAIN)
        return WAITS;
    return result ? result : put(p, 0, &accepted, sizeof accepted);
}

static int shut_down(struct socket *s, uint32_t how)
{
    if (how > 2)
        return -EINVAL;
    if (s->kind == MINOR_TCP && s->state < NET_SYN_RECEIVED)
        return -ENOTCONN;
    if (how != 1) {
        s->no_more = 1;
        socket_changed(s);
    }
    return how && s->kind == MINOR_TCP ? tcp_shutdown(s) : 0;
}

static int set_option(struct socket *s, const struct net_option *option)
{
    switch (option->option) {
    case NET_OPTION_NODELAY:
        s->nodelay = option->value != 0;
        return 0;
    case NET_OPTION_REUSE:
        s->reuse = option->value != 0;
        return 0;
    case NET_OPTION_KEEPALIVE:
        s->keepalive = option->value != 0;
        if (s->state >= NET_ESTABLISHED)
            tcp_keepalive_from_now(s);
        return 0;
    default:
        return -ENOPROTOOPT;
    }
}

/* Those that only say something. */
static int tell(const struct pending *p, struct socket *s)
{
    static union {
        struct net_socket socket;
        struct net_sockets sockets;
        struct net_interfaces interfaces;
        int32_t error;
    } answer;
    switch (p->request) {
    case NET_SOCKET:
        socket_describe(s, &answer.socket);
        break;
    case NET_ERROR:
        answer.error = -socket_take_error(s);
        break;
    case NET_LIST:
        interface_list(&answer.interfaces);
        break;
    case NET_SOCKETS:
        if (get(p, 0, &answer.sockets, sizeof answer.sockets))
            return -EFAULT;
        sockets_list(&answer.sockets);
        break;
    default:
        return -ENOTTY;
    }
    return put(p, 0, &answer, p->bytes);
}

static int control(struct pending *p, struct socket *s)
{
    union {
        struct net_address address;
        struct net_option option;
        struct net_setting setting;
        uint32_t words[2];
    } in;
    uint32_t bytes = p->bytes = IOCTL_BYTES(p->request), of_data = bytes - sizeof(struct net_message);
    if (bytes >= sizeof(struct net_message) && p->request == NET_SIZE(NET_SEND, of_data))
        return send(p, s, 1);
    if (bytes >= sizeof(struct net_message) && p->request == NET_SIZE(NET_RECEIVE, of_data))
        return receive(p, s, 1);
    if (p->request == NET_CONNECT)
        return connect(p, s);
    if (p->request == NET_ACCEPT)
        return accept(p, s);
    if (p->request & 0x40000000u)
        return tell(p, s);
    if (bytes > sizeof in || get(p, 0, &in, bytes))
        return -EINVAL;
    switch (p->request) {
    case NET_BIND:
        return socket_bind(s, swap32(in.address.address), swap16(in.address.port));
    case NET_LISTEN:
        return s->kind == MINOR_TCP ? tcp_listen(s, in.words[0]) : -EOPNOTSUPP;
    case NET_TAKE:
        return tcp_take(s, in.words);
    case NET_SHUTDOWN:
        return shut_down(s, in.words[0]);
    case NET_OPTION:
        return set_option(s, &in.option);
    case NET_SET:
        in.setting.name[sizeof in.setting.name - 1] = 0;
        return interface_set(&in.setting);
    default:
        return -ENOTTY;
    }
}

/* ---- All requests ---- */

static int attempt(struct pending *p)
{
    struct socket *s = socket_of_minor(p->minor);
    if (!s)
        return p->type == DEVICE_SELECT ? (int)(p->flags & 3) : -EIO;
    switch (p->type) {
    case DEVICE_READ:
        return receive(p, s, 0);
    case DEVICE_WRITE:
        return send(p, s, 0);
    case DEVICE_IOCTL:
        return control(p, s);
    default: {
        uint32_t can = socket_can(s) & p->flags & 3;
        return can || !(p->flags & WAIT) ? (int)can : WAITS;
    }
    }
}

static void answer(const struct pending *p, int32_t result)
{
    character_reply(p->from, p->number, result);
}

static int may_wait(const struct pending *p)
{
    return p->type == DEVICE_SELECT || !(p->flags & O_NONBLOCK);
}

static void begin(struct pending *p)
{
    int result = attempt(p);
    if (result == WAITS && !may_wait(p))
        result = p->type == DEVICE_IOCTL && p->request == NET_CONNECT ? -EINPROGRESS : -EAGAIN;
    if (result == WAITS && pending_used < PENDING_MAX)
        pending[pending_used++] = *p;
    else
        answer(p, result == WAITS ? -ENOBUFS : result);
}

static void forget(uint32_t i)
{
    memmove(pending + i, pending + i + 1, (--pending_used - i) * sizeof *pending);
}

/* Sockets that change meanwhile are looked at in the next round, of which each answers a request or is the
   last. */
void requests_retry(void)
{
    while (any_changed) {
        uint32_t bits[sizeof changed / sizeof *changed];
        memcpy(bits, changed, sizeof bits);
        memset(changed, 0, sizeof changed);
        any_changed = 0;
        for (uint32_t i = 0; i < pending_used;) {
            uint32_t index = pending[i].minor - NET_FIRST_SOCKET;
            if (!(bits[index / 32] >> index % 32 & 1)) {
                i++;
                continue;
            }
            struct pending p = pending[i];
            int result = attempt(&p);
            if (result == WAITS) {
                pending[i++] = p;
                continue;
            }
            forget(i);
            answer(&p, result);
        }
    }
}

static void open(const struct message *m)
{
    struct socket *s = m->w[1] <= MINOR_ICMP ? socket_new(m->w[1]) : NULL;
    if (s)
        s->attached = 1;
    character_reply(m->source, m->w[0], s ? (int32_t)minor_of(s) : m->w[1] <= MINOR_ICMP ? -ENFILE : -ENODEV);
}

static void close(const struct message *m)
{
    struct socket *s = socket_of_minor(m->w[1]);
    for (uint32_t i = pending_used; i-- > 0;)
        if (s && pending[i].minor == m->w[1] && pending[i].from == m->source) {
            answer(&pending[i], -EBADF);
            forget(i);
        }
    if (s)
        socket_close(s);
    character_reply(m->source, m->w[0], 0);
}

static void cancel(const struct message *m)
{
    for (uint32_t i = 0; i < pending_used; i++)
        if (pending[i].from == m->source && pending[i].number == m->w[0]) {
            uint32_t done =
                pending[i].type == DEVICE_IOCTL && pending[i].request == NET_CONNECT ? 0 : pending[i].done;
            answer(&pending[i], done ? (int32_t)done : -EINTR);
            forget(i);
            return;
        }
}

int net_request(struct message *m)
{
    struct pending p = {.from = m->source, .type = m->type, .number = m->w[0], .minor = m->w[1]};
    switch (m->type) {
    case DEVICE_OPEN:
        open(m);
        break;
    case DEVICE_CLOSE:
        close(m);
        break;
    case DEVICE_CANCEL:
        cancel(m);
        break;
    case DEVICE_READ:
    case DEVICE_WRITE:
        p.grant = m->w[2];
        p.bytes = least(m->w[3], WAITS - 1);
        p.flags = m->w[4] & O_NONBLOCK;
        begin(&p);
        break;
    case DEVICE_IOCTL:
        p.request = m->w[2];
        p.grant = m->w[3];
        p.flags = m->w[5] & O_NONBLOCK;
        begin(&p);
        break;
    case DEVICE_SELECT:
        p.flags = m->w[2];
        begin(&p);
        break;
    default:
        return m->type > 0 ? -ENOSYS : NO_REPLY;
    }
    return NO_REPLY;
}
