/* The registers of the DP8390 (data sheet, section 8.0), and of the NE2000 around it. */

#ifndef NE2000_H
#define NE2000_H

#define CR 0x00
#define CR_STOP 0x01
#define CR_START 0x02
#define CR_TRANSMIT 0x04
#define CR_READ 0x08           /* remote DMA */
#define CR_WRITE 0x10
#define CR_NO_DMA 0x20
#define CR_PAGE_1 0x40

/* Page 0. */
#define PSTART 0x01
#define PSTOP 0x02
#define BNRY 0x03
#define TPSR 0x04
#define TBCR0 0x05
#define TBCR1 0x06
#define ISR 0x07
#define RSAR0 0x08
#define RSAR1 0x09
#define RBCR0 0x0a
#define RBCR1 0x0b
#define RCR 0x0c
#define TCR 0x0d
#define CNTR0 0x0d             /* read: the first of three counters */
#define DCR 0x0e
#define IMR 0x0f

/* Page 1. */
#define PAR0 0x01
#define CURR 0x07
#define MAR0 0x08

/* Of the NE2000. */
#define DATA 0x10
#define RESET 0x1f

#define ISR_PRX 0x01
#define ISR_PTX 0x02
#define ISR_RXE 0x04
#define ISR_TXE 0x08
#define ISR_OVW 0x10
#define ISR_CNT 0x20
#define ISR_RDC 0x40
#define ISR_RST 0x80
#define INTERRUPTS (ISR_PRX | ISR_PTX | ISR_RXE | ISR_TXE | ISR_OVW | ISR_CNT)

#define DCR_WORDS 0x49         /* words, normal operation, FIFO threshold of 8 bytes */
#define RCR_BROADCAST 0x04
#define RCR_MONITOR 0x20
#define TCR_LOOPBACK 0x02

/* The card's memory of 16 KiB, in pages of 256 bytes: a frame to be sent, and the ring of frames that
   come. */
#define SEND_PAGE 0x40
#define FIRST_PAGE 0x46
#define END_PAGE 0x80

#define PROM_BYTES 32
#define SHORTEST 60u           /* of Ethernet, without the check sequence */
#define CHECK_BYTES 4u

#define RESET_MICROSECONDS 10000u
#define DMA_MICROSECONDS 20000u
#define STOP_MICROSECONDS 1600u

/* Rounds of an interrupt: a card that always has another reason is not asked for ever. */
#define ROUNDS 16

#endif
