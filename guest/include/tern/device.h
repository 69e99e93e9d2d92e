/* Requests of the file system to drivers. Data goes by grants: the driver copies by SAFECOPY. A driver
   answers requests for characters when it can, in any order, and requests for blocks at once, or when the
   device is done. Each request has a number in w[0] that the answer repeats: FS waits for a limited time, and
   an answer that comes later must not be taken for that to its next request. */

#ifndef TERN_DEVICE_H
#define TERN_DEVICE_H

#include <stdint.h>

enum device_request {
    /* Character devices. FS sends them by SENDA; the driver answers by SENDA with DEVICE_REPLY: number,
       result. */
    DEVICE_OPEN = 0x300,  /* number, minor, endpoint of the process, flags -> 0, or the minor number that the
                             open file has from now on, which ends with the driver's process */
    DEVICE_CLOSE,         /* number, minor */
    DEVICE_READ,          /* number, minor, grant, bytes, flags (O_NONBLOCK) */
    DEVICE_WRITE,         /* number, minor, grant, bytes, flags */
    DEVICE_IOCTL,         /* number, minor, request, grant (of as many bytes as the request has), value,
                             flags */
    DEVICE_CANCEL,        /* number of a request: answer it now, with EINTR if it was not done */
    DEVICE_SELECT,        /* number, minor, what (1 read, 2 write, 4 wait until it can) -> what can be done */
    DEVICE_REPLY,         /* number, result */

    /* Block devices, by SENDREC. Positions and lengths are multiples of 512; minor numbers count
       partitions. */
    BLOCK_OPEN = 0x340,   /* number, minor -> number, size in sectors (low, high) */
    BLOCK_READ,           /* number, minor, sector (low, high), grant, bytes -> number, bytes */
    BLOCK_WRITE,          /* number, minor, sector (low, high), grant, bytes -> number, bytes */
    BLOCK_FLUSH,          /* number, minor -> number */

    /* Network cards. The network server sends them by SENDREC; a card notifies it, the sender of CARD_START,
       when a frame has come or room has become free. */
    CARD_START = 0x380,   /* -> 6 bytes of address in w[0], w[1]. Also to a card that has started already */
    CARD_SEND,            /* grant, bytes -> 0, or EAGAIN if there is no room */
    CARD_RECEIVE,         /* grant, bytes -> bytes in w[0], or EAGAIN if there is none */
    CARD_UP               /* from RS to the network server: number of the card's service, endpoint (NONE: it
                             has ended for good), name's 16 bytes: the driver of a card was started or
                             replaced */
};

/* Requests of IOCTL: the size of the argument in bits 16 to 29, bit 30: the driver writes it, 31: it reads
   it. */
#define IOCTL_GET(group, number, type) (0x40000000u | sizeof(type) << 16 | (group) << 8 | (number))
#define IOCTL_SET(group, number, type) (0x80000000u | sizeof(type) << 16 | (group) << 8 | (number))
#define IOCTL_BYTES(request) ((request) >> 16 & 0x3fff)

/* Terminals. */
struct terminal {
    uint32_t flags;        /* TERMINAL_ */
    uint32_t speed;        /* bits a second, of serial lines */
    uint32_t group;        /* the process group in the foreground */
    uint16_t rows, columns;
    uint8_t interrupt, quit, erase, kill, end, suspend; /* characters */
};

#define TERMINAL_ECHO 1
#define TERMINAL_LINES 2   /* reads return whole lines, which can be edited */
#define TERMINAL_SIGNALS 4
#define TERMINAL_OUTPUT 8  /* LF becomes CR LF */
#define TERMINAL_INPUT 16  /* CR becomes LF */

#define TERMINAL_GET IOCTL_GET('t', 1, struct terminal)
#define TERMINAL_SET IOCTL_SET('t', 2, struct terminal)

/* /dev/clock, whose requests have the names of the MINIX patch that measured ticks. */
struct clock_setting {
    uint32_t source, hz;   /* CLOCK_ of tern/calls.h */
};

/* Minor numbers of MAJOR_CLOCK. */
#define MINOR_CLOCK 0      /* /dev/clock: the requests below */
#define MINOR_RTC 1        /* /dev/rtc: the time that the real-time clock has, read and written as text */
#define MINOR_SPEAKER 2    /* /dev/speaker: lines with a frequency and milliseconds are played */

#define CLIOCGETHZ IOCTL_GET('c', 1, struct clock_setting)
#define CLIOCSETHZ IOCTL_SET('c', 2, struct clock_setting)

#endif
