/* Signals. */

#include <errno.h>
#include <signal.h>
#include <tern/lib.h>
#include <unistd.h>
#include "request.h"

void signal_restorer(void);

/* Called by signal_restorer with the address of the handler's argument. Does not return. */
void end_signal(uint32_t frame)
{
    struct message m = {.w = {frame}};
    call(SERVICE(PM), PM_SIGRETURN, &m);
}

int sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
    struct message m = {.w = {number}};
    if (action) {
        m.w[1] = WORD(action->sa_handler);
        m.w[2] = action->sa_mask;
        m.w[3] = WORD(signal_restorer);
    } else {
        m.w[1] = PM_HANDLER_KEEP;
    }
    if (request(SERVICE(PM), PM_SIGACTION, &m) < 0)
        return -1;
    if (old) {
        old->sa_handler = (void (*)(int))m.w[0];
        old->sa_mask = m.w[1];
        old->sa_flags = 0;
    }
    return 0;
}

void (*signal(int number, void (*handler)(int)))(int)
{
    struct sigaction action = {.sa_handler = handler}, old;
    return sigaction(number, &action, &old) < 0 ? SIG_ERR : old.sa_handler;
}

int sigprocmask(int how, const sigset_t *set, sigset_t *old)
{
    struct message m = {.w = {set ? how : SIG_BLOCK, set ? *set : 0}};
    if (request(SERVICE(PM), PM_SIGMASK, &m) < 0)
        return -1;
    if (old)
        *old = m.w[0];
    return 0;
}

int sigsuspend(const sigset_t *mask)
{
    return pm_value(PM_SIGSUSPEND, *mask, 0, 0);
}

int pause(void)
{
    sigset_t mask = 0;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    return sigsuspend(&mask);
}

static int valid(int number)
{
    if (number > 0 && number < SIGNALS)
        return 1;
    errno = EINVAL;
    return 0;
}

int sigemptyset(sigset_t *set)
{
    *set = 0;
    return 0;
}

int sigfillset(sigset_t *set)
{
    *set = ~0u;
    return 0;
}

int sigaddset(sigset_t *set, int number)
{
    if (!valid(number))
        return -1;
    *set |= 1u << number;
    return 0;
}

int sigdelset(sigset_t *set, int number)
{
    if (!valid(number))
        return -1;
    *set &= ~(1u << number);
    return 0;
}

int sigismember(const sigset_t *set, int number)
{
    return valid(number) ? (int)(*set >> number & 1) : -1;
}

int kill(pid_t pid, int number)
{
    return pm_call(PM_KILL, pid, number, 0);
}

int killpg(pid_t group, int number)
{
    return kill(group ? -group : 0, number);
}

int raise(int number)
{
    return kill(getpid(), number);
}
