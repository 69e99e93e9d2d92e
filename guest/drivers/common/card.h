/* Network cards: the requests of the network server (tern/device.h). A driver has at most one frame under way
   from and to the network server at a time; how many its card holds is its own affair. */

#ifndef CARD_H
#define CARD_H

#include <stdint.h>
#include <tern/device.h>
#include <tern/server.h>

#define ADDRESS_BYTES 6
#define FRAME_MIN 14u          /* the header alone; cards or drivers fill frames up to 60 bytes */
#define FRAME_MAX 1514u        /* without the check sequence */

struct card {
    uint8_t address[ADDRESS_BYTES];
    /* Where the next frame to be sent is put, or NULL if there is no room now; and sends so many bytes of
       it. */
    uint8_t *(*room)(void);
    int (*send)(uint32_t bytes);
    /* The first frame that has come, or NULL if there is none; and lets it go. */
    const uint8_t *(*received)(uint32_t *bytes);
    void (*release)(void);
};

void card_start(const struct card *card);

/* Tells the network server that a frame has come, or that there is room again if it has asked for some. */
void card_has_frames(void);
void card_has_room(void);

#define CARD_REQUESTS \
    {CARD_START, card_request}, {CARD_SEND, card_request}, {CARD_RECEIVE, card_request}
int card_request(struct message *m);

#endif
