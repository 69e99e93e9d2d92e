/* What the tests of processes have in common. */

#ifndef TEST_H
#define TEST_H

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/types.h>

extern int failures;
extern volatile sig_atomic_t caught;   /* signals so far that count_signal has counted */

#define CHECK(condition) \
    ((condition) \
         ? 0 \
         : (printf("%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno), failures++))

void count_signal(int number);
void catch(int number, void (*handler)(int), sigset_t mask);
int status_of(pid_t pid);              /* waits for the child's end */

void test_pipes(void);

#endif
