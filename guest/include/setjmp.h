/* Jumps out of functions. The buffer holds EBX, ESI, EDI, EBP, ESP and EIP. */

#ifndef SETJMP_H
#define SETJMP_H

typedef unsigned int jmp_buf[6];

int setjmp(jmp_buf state) __attribute__((returns_twice));
void longjmp(jmp_buf state, int value) __attribute__((noreturn));

#endif
