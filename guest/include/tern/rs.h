/* The reincarnation server and the data store. */

#ifndef TERN_RS_H
#define TERN_RS_H

#include <stdint.h>
#include <tern/ipc.h>
#include <tern/rights.h>

/* From processes to RS. A service's name is in memory of the caller: (address, length). */
enum rs_request {
    RS_UP = 0x400,     /* name, length: starts a service of the configuration */
    RS_DOWN,           /* name, length: ends it for good */
    RS_RESTART,        /* name, length: kills it; RS replaces it as after a fault */
    RS_UPGRADE,        /* name, length, address and bytes of the new program (0: of the boot archive's): the
                          old one is asked to save its state in DS, and the new one takes its number over */
    RS_WAYS,           /* name, length, BY_ bits: how it reaches ports from its next start on; 0 as
                          configured */
    RS_LIST,           /* address, bytes -> bytes of struct service_info[] */
    RS_FAULT,          /* name, length, what (FAULT_): makes a service fail, for tests; sent to it as
                          RS_FAIL */
    RS_READY,          /* from a service, when it can serve */
    RS_EXIT,           /* from a service, status: it wants to end. Gets no reply */
    RS_SCRIPT,         /* name, length, path of a script, its length (0: as RS does without one): what decides
                          from now on when the service has failed */
    RS_FAILURE,        /* address of struct service_failure: waits for a failure that a script is to decide.
                          One process at a time waits for them */
    RS_DECIDED         /* name, length: the script has ended. If it did nothing with the service, RS
                          restarts it */
};

/* From RS to a service. A ping is a NOTIFY from RS; the service answers it by a NOTIFY to RS. */
#define RS_FAIL 0x480      /* FAULT_ */
#define RS_SAVE 0x481      /* an upgrade: save state in DS and end, or answer with an error and go on */

#define FAULT_POINTER 1    /* write through a wild pointer */
#define FAULT_LOOP 2       /* loop for ever */
#define FAULT_PORT 3       /* read a port that it has no right to */
#define FAULT_EXIT 4       /* end */
#define FAULT_DUMB 5       /* answer no ping any more */
#define FAULT_CALL 6       /* a kernel call that it has no right to */
#define FAULT_DESTINATION 7 /* send to a process to which it has no right to send */
#define FAULT_INTERRUPT 8  /* set an interrupt line that it has no right to */
#define FAULT_LATE 9       /* give the answer to the next request when another one has come */

/* The arguments of a service's program (argv), after its path. Numbers are hexadecimal but for lines. For
   devices of PCI, its ranges of ports and memory come in the order of its base addresses.

     way=message, direct, trap, bitmap or kernel     how it is to reach ports
     port=FIRST-LAST     for each range of ports
     memory=BASE,BYTES   for each range of device memory
     irq=LINE            for each line
     pci=BUS:DEVICE.FUNCTION,VENDOR:DEVICE   if the configuration names a device of PCI
     resume              it takes over from a service that saved its state in DS (upgrade)

   and then the arguments of the configuration. */

#define SCRIPT_BYTES 64    /* of a script's path, with the final 0 */

struct service_info {
    char name[NAME_BYTES];
    uint32_t number;
    endpoint_t endpoint;
    uint32_t state;        /* SERVICE_ */
    uint32_t restarts;
    uint32_t ways;
    int32_t cause;         /* of the last end: vector of an exception, or -1 no answer to pings, -2 killed, -3
                              exit, -4 it asked for what it has no right to */
};

/* The failure of a service that has a script. */
struct service_failure {
    char name[NAME_BYTES];
    char script[SCRIPT_BYTES];
    int32_t cause;         /* as in struct service_info */
    uint32_t failures;     /* this one, and those before it since the service last behaved well */
};

#define SERVICE_DOWN 0
#define SERVICE_STARTING 1
#define SERVICE_UP 2
#define SERVICE_WAITING 3  /* for the end of its back-off */

/* To DS: values of at most 4096 bytes by names of at most 31. A name is (address, length). */
enum ds_request {
    DS_PUT = 0x500,    /* name, length, address, bytes */
    DS_GET,            /* name, length, address, bytes -> bytes */
    DS_DELETE          /* name, length */
};

#endif
