/* Terminals: the line discipline and the requests that the console and serial lines have in common. The
   driver of the device gives bytes that came in, and takes bytes to put out. */

#ifndef TERMINAL_H
#define TERMINAL_H

#include <stdint.h>
#include <tern/device.h>
#include <tern/server.h>

#define TERMINAL_INPUT_MAX 1024  /* a power of two */
#define TERMINAL_EDIT_MAX 256
#define TERMINAL_OUTPUT_MAX 4096 /* a power of two */

struct line;

struct terminal_driver {
    /* Bytes are there for terminal_next. */
    void (*output)(struct line *line);
    /* The settings are to be changed: returns 0, or an error if the device cannot do so. May be NULL. */
    int (*set)(struct line *line, const struct terminal *settings);
};

struct line {
    const struct terminal_driver *driver;
    uint32_t minor;
    struct terminal settings;
    void *device;                /* the driver's own */

    /* Input that can be read; the upper bits say where lines end. */
    uint16_t input[TERMINAL_INPUT_MAX];
    uint32_t input_first, input_used, lines;
    /* The line that is being edited. */
    uint8_t edit[TERMINAL_EDIT_MAX];
    uint32_t edit_used;

    uint8_t output[TERMINAL_OUTPUT_MAX];
    uint32_t output_first, output_used;
    uint32_t column;             /* after all output so far */
    uint32_t edit_column;        /* where the edited line began */
};

/* Makes a line known. Its settings must be set; those that a predecessor of this process saved take their
   place. */
void terminal_add(struct line *line);

/* A byte has come in, or several at once, which nothing may come between. */
void terminal_input(struct line *line, uint8_t byte);
void terminal_input_string(struct line *line, const char *bytes);

/* Whether there is room for the whole line that is being edited and its end. A driver whose device can wait takes
   nothing more from it before. */
int terminal_has_room(const struct line *line);

/* The line was interrupted (a break, a lost carrier): the foreground group gets this signal. */
void terminal_signal(struct line *line, uint32_t signal);

/* Takes the next byte to put out, or -1. */
int terminal_next(struct line *line);

/* As many as there are, at most `most`. */
uint32_t terminal_take(struct line *line, uint8_t *to, uint32_t most);

/* The requests for the server's table, and what the driver's loop calls when idle. */
#define TERMINAL_REQUESTS \
    {DEVICE_OPEN, terminal_request}, {DEVICE_CLOSE, terminal_request}, {DEVICE_READ, terminal_request}, \
    {DEVICE_WRITE, terminal_request}, {DEVICE_IOCTL, terminal_request}, {DEVICE_CANCEL, terminal_request}, \
    {DEVICE_SELECT, terminal_request}
int terminal_request(struct message *m);
uint32_t terminal_idle(void);

/* Of terminal.c for requests.c: whether a read would not wait, reading, and writing. */
int terminal_can_read(const struct line *line);
uint32_t terminal_read(struct line *line, uint8_t *to, uint32_t bytes);
uint32_t terminal_room(const struct line *line);
void terminal_write(struct line *line, const uint8_t *from, uint32_t bytes);
void terminal_change(struct line *line, const struct terminal *settings);

#endif
