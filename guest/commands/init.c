/* The first process: runs /etc/rc, then a shell on each terminal of /etc/ttys, for ever anew. If the kernel's
   command line has run=COMMAND at its end, it executes that instead of shells, and the machine ends with its
   status (by the debug exit device, if there is one). */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <tern/lib.h>
#include <time.h>
#include <unistd.h>

#define TERMINALS 16
#define PATH_BYTES 48
#define SHELL "/bin/sh"
#define FAST_ENDS 5          /* a shell that ends so often at once has no terminal */
#define FAST_SECONDS 2

struct terminal_line {
    char path[PATH_BYTES];
    pid_t shell;
    time_t started;
    int fast_ends;
};

static struct terminal_line lines[TERMINALS];
static int line_count;

/* Makes the file the standard input, output and error output. Returns whether it could be opened. */
static int use(const char *path)
{
    int fd = open(path, O_RDWR);
    if (fd < 0)
        return 0;
    for (int to = 0; to < 3; to++)
        if (fd != to)
            dup2(fd, to);
    if (fd > 2)
        close(fd);
    return 1;
}

static int wait_for(pid_t pid)
{
    int status = 0;
    for (;;) {
        pid_t ended = wait(&status);
        if (ended == pid || (ended < 0 && errno != EINTR))
            return ended == pid ? status : -1;
    }
}

/* Executes a shell with these arguments and waits for its end. */
static int run(char *const argv[])
{
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        tcsetpgrp(0, getpid());
        execv(SHELL, argv);
        _exit(127);
    }
    return pid < 0 ? -1 : wait_for(pid);
}

static void read_terminals(void)
{
    char line[128];
    FILE *file = fopen("/etc/ttys", "r");
    if (!file)
        return;
    while (line_count < TERMINALS && fgets(line, sizeof line, file)) {
        line[strcspn(line, " \t\r\n#")] = 0;
        if (line[0] && strlen(line) < PATH_BYTES)
            strcpy(lines[line_count++].path, line);
    }
    fclose(file);
}

static void start_shell(struct terminal_line *line)
{
    char *const argv[] = {"-sh", NULL};
    line->started = time(NULL);
    line->shell = fork();
    if (line->shell != 0)
        return;
    setsid();
    if (!use(line->path))
        _exit(1);
    tcsetpgrp(0, getpid());
    execv(SHELL, argv);
    _exit(127);
}

static void shell_ended(struct terminal_line *line)
{
    line->shell = -1;
    line->fast_ends = time(NULL) - line->started < FAST_SECONDS ? line->fast_ends + 1 : 0;
    if (line->fast_ends < FAST_ENDS)
        start_shell(line);
    else
        printf("init: no shell on %s\n", line->path), fflush(stdout);
}

static void keep_shells(void)
{
    for (int i = 0; i < line_count; i++)
        start_shell(&lines[i]);
    for (;;) {
        pid_t ended = wait(NULL);
        if (ended < 0 && errno == ECHILD)
            pause();
        for (int i = 0; i < line_count; i++)
            if (ended > 0 && lines[i].shell == ended)
                shell_ended(&lines[i]);
    }
}

/* Output goes to the first terminal that there is. */
static void find_output(void)
{
    for (int i = 0; i < line_count; i++)
        if (use(lines[i].path))
            return;
    use("/dev/null");
}

static void run_and_end(char *command)
{
    char *const argv[] = {"sh", "-c", command, NULL};
    int status = run(argv);
    int code = status < 0 ? 127 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    printf("init: %s: status %d\n", command, code);
    fflush(stdout);
    reboot(ABORT_DEBUG_EXIT, code);
}

int main(void)
{
    static struct boot_info boot;
    char *const rc[] = {"sh", "/etc/rc", NULL};
    char *command = NULL;
    if (sys_getinfo(INFO_BOOT, &boot, sizeof boot) >= 0) {
        boot.command_line[sizeof boot.command_line - 1] = 0;
        command = strstr(boot.command_line, "run=");
    }
    read_terminals();
    find_output();
    if (access("/etc/rc", R_OK) == 0)
        run(rc);
    if (command)
        run_and_end(command + strlen("run="));
    keep_shells();
    return 0;
}
