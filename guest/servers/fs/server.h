/* The server: what its files share. vfs.h has what is below it. */

#ifndef FS_SERVER_H
#define FS_SERVER_H

#include <stdint.h>
#include <tern/fs.h>
#include <tern/ipc.h>
#include <tern/lib.h>
#include <tern/server.h>
#include "vfs.h"

#define FILES_MAX 512

/* An open file; descriptors that were made by dup or fork share it. */
struct file {
    uint32_t references;       /* 0: the entry is free */
    struct node *node;         /* NULL for pipes without a name */
    struct pipe *pipe;
    uint32_t flags, position;
    uint32_t device;           /* of devices; /dev/tty has become the terminal itself. 0: the driver knows it
                                  no more */
    uint32_t sectors;          /* of a disk: how many it had when it was opened */
    uint8_t connection;        /* the driver gave the device's number, which is for this file alone */
};

enum wait { NOTHING, PIPE, DEVICE, SELECTION };

struct selection {
    uint32_t read, write;              /* descriptors that are wanted */
    uint32_t can_read, can_write;      /* and those that can do it */
    uint32_t outstanding;              /* requests to drivers without an answer */
    uint8_t waiting;                   /* the drivers answer when they can, no more at once */
    uint64_t until;                    /* 0: for ever */
};

struct driver;

struct client {
    endpoint_t endpoint;               /* NONE: the entry is free */
    struct node *directory;
    struct file *files[DESCRIPTORS];
    uint32_t close_on_exec;
    uint32_t terminal;                 /* that it opened last */
    enum wait waits;
    struct message request;            /* when it waits for a pipe: a read, a write, or the open of a FIFO,
                                          whose descriptor it has already in w[0] */
    uint32_t done;                     /* bytes of it */
    struct selection selection;
};

extern struct client clients[SLOTS];
extern struct node *root;

/* A part of a file that is copied at a time; buffers for it. */
#define CHUNK 65536u
extern uint8_t chunk[CHUNK];

/* clients.c */
struct client *client_of(endpoint_t endpoint);
int client_fork(struct message *m);
int client_exec(struct message *m);
int client_exit(struct message *m);
int client_interrupt(struct message *m);
void client_answer(struct client *client, int32_t result, uint32_t value);

/* files.c */
struct file *file_of(struct client *client, uint32_t descriptor);
/* takes the reference to the node over */
int file_new(struct node *node, uint32_t flags, struct file **made);
int file_place(struct client *client, struct file *file, uint32_t flags, uint32_t first,
               uint32_t *descriptor);
void file_put(struct file *file);
void files_lose_connections(const struct driver *driver);
int do_open(struct client *client, struct message *m);
int do_close(struct client *client, struct message *m);
int do_read(struct client *client, struct message *m);
int do_write(struct client *client, struct message *m);
int do_transfer_at(struct client *client, struct message *m);
int do_seek(struct client *client, struct message *m);
int do_dup(struct client *client, struct message *m);
int do_fcntl(struct client *client, struct message *m);
int do_fstat(struct client *client, struct message *m);
int do_directory(struct client *client, struct message *m);
int do_truncate(struct client *client, struct message *m);

/* paths.c: requests about names; read_image is PM's. */
int walk(struct client *client, uint32_t address, uint32_t length, int how, struct node **node,
         struct last_name *last);
int do_name(struct client *client, struct message *m);  /* those that change directories */
int do_stat(struct client *client, struct message *m);
int do_readlink(struct client *client, struct message *m);
int do_chdir(struct client *client, struct message *m);
int do_getcwd(struct client *client, struct message *m);
int do_attributes(struct client *client, struct message *m);
int do_statfs(struct client *client, struct message *m);
int do_mount(struct client *client, struct message *m);
int do_umount(struct client *client, struct message *m);
int read_image(struct message *m);

/* pipes.c */
int do_pipe(struct client *client, struct message *m);
int pipe_open(struct client *client, struct file *file, uint32_t descriptor); /* of a FIFO */
void pipe_cancel(struct client *client);                /* it waits no longer */
void pipe_close(struct file *file);
int pipe_transfer(struct client *client, struct file *file, struct message *m, int is_write);
uint32_t pipe_can(const struct file *file, uint32_t what);

/* drivers.c: which process serves which device. */
struct driver {
    endpoint_t endpoint;               /* NONE: it was ended for good */
    uint32_t major, first, last;
};
struct driver *driver_of(uint32_t device);              /* NULL: there never was one */
void driver_up(const struct message *m);

/* devices.c: requests for characters. */
#define REQUESTS 64
#define FIRST_BLOCK_GRANT REQUESTS
#define BLOCK_GRANTS 64
#define GRANTS (REQUESTS + BLOCK_GRANTS)
extern struct grant grants[GRANTS];
int device_transfer(struct client *client, struct file *file, struct message *m, int is_write);
int device_open(struct client *client, struct file *file);
void device_close(const struct file *file);
int do_ioctl(struct client *client, struct message *m);
int device_select(struct client *client, uint32_t descriptor, uint32_t what);
void device_replied(struct message *m);
void devices_cancel(struct client *client);
void devices_resend(const struct driver *driver);       /* it is another process now */
int devices_waiting(void);                              /* whether requests wait for room to be sent */
void devices_send(void);

/* blocks.c: raw access to disks. */
int block_open(uint32_t device, uint32_t *sectors);
int block_transfer(struct client *client, struct file *file, struct message *m, int is_write);

/* select.c */
#define CAN_READ 1u
#define CAN_WRITE 2u
#define CAN_WAIT 4u
int do_select(struct client *client, struct message *m);
void select_replied(struct client *client, uint32_t descriptor, int32_t can);
void select_check(struct client *client);               /* a pipe has changed, or it is late */
uint64_t select_next(void);                             /* when the next is late */

/* outside.c */
uint64_t microseconds(void);
void set_time(uint64_t since_1970_at_start);

#endif
