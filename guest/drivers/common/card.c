/* Network cards: the requests of the network server. */

#include <string.h>
#include <tern/lib.h>
#include "card.h"

static const struct card *card;
static endpoint_t network = NONE;
static int waits_for_room;

void card_start(const struct card *started)
{
    card = started;
}

void card_has_frames(void)
{
    if (network != NONE)
        ipc_notify(network);
}

void card_has_room(void)
{
    if (waits_for_room) {
        waits_for_room = 0;
        card_has_frames();
    }
}

static int send(const struct message *m)
{
    uint32_t bytes = m->w[1];
    if (bytes < FRAME_MIN || bytes > FRAME_MAX)
        return -EINVAL;
    uint8_t *to = card->room();
    if (!to) {
        waits_for_room = 1;
        return -EAGAIN;
    }
    int error = sys_safecopy(m->source, m->w[0], 0, to, bytes, GRANT_READ);
    return error ? error : card->send(bytes);
}

static int receive(struct message *m)
{
    uint32_t bytes;
    const uint8_t *frame = card->received(&bytes);
    if (!frame)
        return -EAGAIN;
    int error = bytes > m->w[1] ? -EINVAL
                                : sys_safecopy(m->source, m->w[0], 0, (void *)frame, bytes, GRANT_WRITE);
    card->release();
    m->w[0] = bytes;
    return error;
}

int card_request(struct message *m)
{
    if (m->type == CARD_SEND)
        return send(m);
    if (m->type == CARD_RECEIVE)
        return receive(m);
    network = m->source;
    memcpy(m->w, card->address, ADDRESS_BYTES);
    return 0;
}
