/* policies: executes the scripts of services that have failed (`on-failure script` in /etc/services, `service
   script`), each with the service's name, the reason and the count of failures as arguments. The script starts
   the service by `service up NAME` or leaves it down by `service down NAME`; if it does neither, RS restarts
   it. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <tern/lib.h>
#include <tern/rs.h>
#include <unistd.h>

static const char *reason(int32_t cause)
{
    static char text[24];
    static const char *const reasons[] = {"silent", "killed", "exit", "refused"};
    if (cause < 0 && cause >= -4)
        return reasons[-cause - 1];
    snprintf(text, sizeof text, "exception-%d", (int)cause);
    return text;
}

static void execute(const struct service_failure *failure)
{
    char count[12];
    int status;
    snprintf(count, sizeof count, "%u", (unsigned)failure->failures);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", failure->script, failure->name, reason(failure->cause), count, NULL);
        _exit(127);
    }
    if (pid > 0)
        waitpid(pid, &status, 0);
    rs_call(RS_DECIDED, failure->name, 0, 0);
}

int main(void)
{
    static struct service_failure failure;
    struct message m;
    for (;;) {
        m.w[0] = (uint32_t)&failure;
        int result = call(SERVICE(RS), RS_FAILURE, &m);
        if (result) {
            fprintf(stderr, "policies: %s\n", strerror(-result));
            return 1;
        }
        /* Another process for each, so that one script may wait while others go on. */
        pid_t pid = fork();
        if (pid == 0) {
            execute(&failure);
            return 0;
        }
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}
