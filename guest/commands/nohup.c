/* nohup COMMAND...: executes a command that SIGHUP does not end; what it would print on a terminal goes to
   nohup.out. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 2 || *argv[1] == '-')
        return usage("nohup COMMAND...");
    if (isatty(1)) {
        int fd = open("nohup.out", O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (fd < 0 || dup2(fd, 1) < 0) {
            perror("nohup.out");
            return 127;
        }
        close(fd);
    }
    if (isatty(2))
        dup2(1, 2);
    signal(SIGHUP, SIG_IGN);
    execvp(argv[1], argv + 1);
    fprintf(stderr, "nohup: %s: %s\n", argv[1], strerror(errno));
    return errno == ENOENT ? 127 : 126;
}
