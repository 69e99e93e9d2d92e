/* The reincarnation server: what its files share. */

#ifndef RS_SERVER_H
#define RS_SERVER_H

#include <stddef.h>
#include <stdint.h>
#include <tern/lib.h>
#include <tern/rs.h>

#define ARGUMENTS 8
#define ARGUMENT_BYTES 40
#define PATH_BYTES 48
#define PCI_IDS 6

enum policy { RESTART, LEAVE, REBOOT, SCRIPT };

/* A kind of device of PCI: vendor and device, or class and subclass. */
struct pci_id {
    uint16_t first, second;
    uint8_t by_class;
};

/* A service: first as it is configured, then as it is. */
struct service {
    char name[NAME_BYTES];
    char program[PATH_BYTES];
    struct rights rights;        /* without the ranges of a device of PCI */
    uint32_t way;                /* a BY_ bit */
    uint32_t period;             /* of pings, in microseconds; 0: none */
    uint32_t major;              /* of device numbers; 0: none */
    uint32_t first_minor, last_minor;
    enum policy policy;
    char script[SCRIPT_BYTES];   /* of the policy SCRIPT */
    uint8_t by_hand;             /* started only when asked for */
    uint8_t card;                /* the network server hears of it */
    uint8_t pci_wanted;          /* without a device of PCI it is not started */
    uint16_t port_wanted;        /* if this port reads as all ones, it is not started; 0: none */
    uint8_t pci_ids;
    struct pci_id pci[PCI_IDS];
    uint8_t arguments;
    char argument[ARGUMENTS][ARGUMENT_BYTES];

    enum { DOWN = SERVICE_DOWN, STARTING = SERVICE_STARTING, UP = SERVICE_UP,
           WAITING = SERVICE_WAITING } state;
    endpoint_t endpoint;         /* NONE when there is no process */
    uint32_t way_wanted;         /* by RS_WAYS: 0 as configured */
    uint32_t restarts, failures; /* all; those since it last behaved well */
    int32_t cause;
    uint64_t since;              /* when it was started, or when it died */
    uint64_t next;               /* when the next ping, the restart or the end of its patience is due */
    uint32_t unanswered;         /* pings */
    uint8_t tell_pm, tell_fs, tell_net; /* news that are still to be sent to them */
    uint8_t has_served;          /* it was ready once: FS or the network server may wait for it */
    uint8_t fail;                /* FAULT_ that is to be sent to it */
    uint8_t saving;              /* an upgrade: it has been asked to save its state */
    uint8_t untold;              /* a failure of which no script has heard yet */
    endpoint_t upgrader;         /* who waits for the upgrade */
    uint8_t *image;              /* of an upgrade; NULL: the file of the archive */
    uint32_t image_bytes;
};

extern struct service services[SERVICES];
extern uint32_t service_count;
extern struct rights users;      /* of programs */

/* services.c: microseconds since the start. */
uint64_t now(void);

/* archive.c: maps the boot archive; finds a file in it. */
int archive_open(const struct boot_info *boot);
const uint8_t *archive_find(const char *path, uint32_t *bytes);

/* configuration.c: reads the text into `services` and `users`. Faulty lines are logged and have no effect. */
void configuration_read(const char *text, uint32_t bytes);
struct service *service_by_name(const char *name);
struct service *service_by_endpoint(endpoint_t endpoint);

/* pci.c: finds all devices; adds the ranges and the line of the service's device to *rights and describes it,
   if there is one for it. */
void pci_scan(void);
int pci_assign(const struct service *service, struct rights *rights, char *description, size_t bytes);

/* program.c: makes a process of a program with these rights, and starts it. */
int program_start(const char *name, const uint8_t *image, uint32_t bytes, const struct rights *rights,
                  char *const argv[], endpoint_t *process);

/* services.c. */
void service_start(struct service *service);
void service_stop(struct service *service);  /* for good */
void service_failed(struct service *service, int32_t cause);
void service_restart(struct service *service); /* one that is waiting */
void service_is_ready(struct service *service);
void service_replace(struct service *service); /* the old one has saved its state */
void announce(void);                         /* sends PM, FS and services the news that wait */
uint64_t services_due(void);                 /* does what is due, returns when it is to be called again */

/* requests.c. */
int handle_request(struct message *message);
void finish_upgrade(struct service *service, int32_t result);

void tell_failures(void);                    /* to the process that waits for them */

#define NET_NAME "net"           /* the service that is the network server */

#define FIRST_RESTART 100000u    /* back-off: microseconds before the second restart; doubled for each */
#define LAST_RESTART 10000000u   /* at most */
#define GOOD_BEHAVIOUR 30000000u /* after so long, the next failure counts as the first again */
#define PATIENCE 20000000u       /* for READY after a start, and for the end of an upgrade */
#define SCRIPT_PATIENCE 30000000u /* for what a script does after a failure */
#define IMAGE_BYTES_MAX 0x200000u

#endif
