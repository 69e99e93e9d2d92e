/* The drivers of cards (tern/device.h). They die and are replaced, and the network waits for them. */

#include <string.h>
#include <tern/lib.h>
#include <tern/server.h>
#include "server.h"

#define CARDS (NET_INTERFACES - 1)
#define FRAMES_AT_ONCE 64
#define PATIENCE 3000000u           /* a driver that does not answer so long is as good as dead, until: */
#define RETRY_MICROSECONDS 5000000u

static struct card {
    struct interface *interface;    /* NULL: the entry is free */
    endpoint_t driver;              /* NONE: there is none */
    uint32_t service;
    uint8_t has_frames;
    uint64_t retry_at;              /* it did not answer; 0: it did */
} cards[CARDS];

/* For each card the frame that it sends, and the one that it receives into. */
static struct grant grants[2 * CARDS];
static uint8_t frame[FRAME_MAX];

static void lose(struct card *card, int error)
{
    interface_down(card->interface);
    card->has_frames = 0;
    card->retry_at = 0;
    if (error == -ETIMEDOUT) {
        card->retry_at = now + RETRY_MICROSECONDS;
        expect(card->retry_at);
    }
}

static int ask(struct card *card, int32_t type, struct message *m)
{
    m->type = type;
    int result = ipc_sendrec(card->driver, m, PATIENCE);
    if (result)
        lose(card, result);
    return result ? result : m->type;
}

static void grant(struct card *card, uint32_t which, const uint8_t *from, uint32_t bytes, struct message *m)
{
    uint32_t index = 2 * (uint32_t)(card - cards) + which;
    grants[index] =
        (struct grant){card->driver, which ? GRANT_WRITE : GRANT_READ, (uint32_t)from, bytes, 0};
    m->w[0] = index;
    m->w[1] = bytes;
}

static void start(struct card *card)
{
    struct message m = {.w = {0}};
    uint8_t address[8];
    card->retry_at = 0;
    if (ask(card, CARD_START, &m) < 0)
        return;
    memcpy(address, m.w, sizeof address);
    memcpy(card->interface->ethernet, address, sizeof card->interface->ethernet);
    card->has_frames = 1;
    interface_up(card->interface);
}

void card_up(const struct message *m)
{
    static int granted;
    char name[NAME_BYTES];
    struct card *card = cards;
    memcpy(name, &m->w[2], NAME_BYTES);
    name[NAME_BYTES - 1] = 0;
    while (card < cards + CARDS && card->interface && card->service != m->w[0])
        card++;
    if (card == cards + CARDS)
        return;
    if (!card->interface)
        card->interface = interface_add(name);
    if (!card->interface)
        return;
    if (!granted) {
        for (int i = 0; i < 2 * CARDS; i++)
            grants[i].to = NONE;
        granted = sys_setgrants(grants, 2 * CARDS) == 0;
    }
    card->service = m->w[0];
    card->driver = m->w[1];
    if (card->driver == NONE)
        lose(card, 0);
    else
        start(card);
}

static struct card *card_of(const struct interface *interface)
{
    for (struct card *card = cards; card < cards + CARDS; card++)
        if (card->interface == interface)
            return card;
    return NULL;
}

int card_send(struct interface *interface, const uint8_t *from, uint32_t bytes)
{
    struct card *card = card_of(interface);
    struct message m = {.w = {0}};
    if (!card || !interface->up)
        return -ENETDOWN;
    grant(card, 0, from, bytes, &m);
    return ask(card, CARD_SEND, &m);
}

void card_notified(endpoint_t source)
{
    for (struct card *card = cards; card < cards + CARDS; card++)
        if (card->interface && card->interface->up && card->driver == source) {
            card->has_frames = 1;
            interface_room(card->interface);
        }
}

static void receive(struct card *card)
{
    struct message m = {.w = {0}};
    grant(card, 1, frame, sizeof frame, &m);
    int result = ask(card, CARD_RECEIVE, &m);
    if (result < 0) {
        card->has_frames = 0;
        return;
    }
    if (m.w[0] <= sizeof frame)
        frame_received(card->interface, frame, m.w[0]);
}

int cards_receive(void)
{
    int more = 0;
    for (struct card *card = cards; card < cards + CARDS; card++) {
        for (int i = 0; i < FRAMES_AT_ONCE && card->has_frames; i++)
            receive(card);
        more |= card->has_frames;
    }
    return more;
}

void cards_timer(void)
{
    for (struct card *card = cards; card < cards + CARDS; card++)
        if (card->interface && is_due(card->retry_at))
            start(card);
}
