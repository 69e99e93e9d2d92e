/* Signals. */

#ifndef SIGNAL_H
#define SIGNAL_H

#include <sys/types.h>
#include <tern/pm.h> /* SIG */

#define NSIG SIGNALS

#define SIG_DFL ((void (*)(int))0)
#define SIG_IGN ((void (*)(int))1)
#define SIG_ERR ((void (*)(int))-1)

#define SIG_BLOCK 0
#define SIG_UNBLOCK 1
#define SIG_SETMASK 2

typedef uint32_t sigset_t;
typedef int sig_atomic_t;

/* There are no flags: handlers stay, their own signal is blocked while they run, and a request that a signal
   interrupts ends with EINTR. */
struct sigaction {
    void (*sa_handler)(int);
    sigset_t sa_mask;
    int sa_flags;
};

int sigaction(int signal, const struct sigaction *action, struct sigaction *old);
void (*signal(int signal, void (*handler)(int)))(int);
int sigprocmask(int how, const sigset_t *set, sigset_t *old);
int sigsuspend(const sigset_t *mask);
int sigemptyset(sigset_t *set);
int sigfillset(sigset_t *set);
int sigaddset(sigset_t *set, int signal);
int sigdelset(sigset_t *set, int signal);
int sigismember(const sigset_t *set, int signal);
int kill(pid_t pid, int signal);
int killpg(pid_t group, int signal);
int raise(int signal);

#endif
