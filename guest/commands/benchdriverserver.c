/*
 * benchdriverserver [PORT]: executes scripts that come over TCP, for ring3 bench driver. A program of Tern
 * and of Linux.
 *
 * What it sends are frames: a channel (8 bits), a number of bytes (32 bits, the high byte first), and these
 * bytes. When it is ready for a script, it sends an empty frame on channel 0. The other end sends the number
 * of the script's bytes (32 bits, as above) and the script, which is given to the shell. The script's
 * standard output is channel 1, its standard error channel 2. When both have ended, a byte on channel 0 is
 * the script's status as the shell's $? has it.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT 1235
#define SCRIPT "/tmp/benchdriver.sh"
#define LARGEST_SCRIPT (1u << 20)

enum { SERVER, OUTPUT, ERRORS, CHANNELS };

#define HEADER 5
#define DATA 4096
static uint8_t frame[HEADER + DATA];

static int put(int to, const uint8_t *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t now = write(to, from + done, bytes - done);
        if (now <= 0)
            return -1;
        done += now;
    }
    return 0;
}

/* Sends BYTES of the frame's data. */
static int send_frame(int host, int channel, uint32_t bytes)
{
    uint8_t header[HEADER] = {channel, bytes >> 24, bytes >> 16, bytes >> 8, bytes};
    memcpy(frame, header, HEADER);
    return put(host, frame, HEADER + bytes);
}

/* Copies BYTES from the host to FILE, unless they end before. */
static int copy(int host, int file, size_t bytes)
{
    while (bytes > 0) {
        ssize_t now = read(host, frame, bytes < sizeof frame ? bytes : sizeof frame);
        if (now <= 0 || put(file, frame, now) != 0)
            return -1;
        bytes -= now;
    }
    return 0;
}

static int get_length(int host, uint32_t *length)
{
    uint8_t bytes[4];
    for (size_t done = 0; done < sizeof bytes;) {
        ssize_t now = read(host, bytes + done, sizeof bytes - done);
        if (now <= 0)
            return -1;
        done += now;
    }
    *length = (uint32_t)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
    return *length <= LARGEST_SCRIPT ? 0 : -1;
}

static int receive_script(int host)
{
    uint32_t length;
    if (get_length(host, &length) != 0)
        return -1;
    mkdir("/tmp", 0777);
    int file = open(SCRIPT, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0)
        return -1;
    int result = copy(host, file, length);
    close(file);
    return result;
}

/* Starts the shell with ends of pipes as its output, and without any other file. */
static pid_t start(int host, int output[2], int errors[2])
{
    pid_t child = fork();
    if (child != 0)
        return child;
    signal(SIGPIPE, SIG_DFL);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(output[1], STDOUT_FILENO);
    dup2(errors[1], STDERR_FILENO);
    int files[] = {host, output[0], output[1], errors[0], errors[1]};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        close(files[i]);
    execl("/bin/sh", "sh", SCRIPT, (char *)NULL);
    _exit(127);
}

/* Sends what comes on one of the channels, if any. Gives 0 when nothing more can come. */
static int pass(int host, int channel, int from)
{
    ssize_t bytes = read(from, frame + HEADER, DATA);
    if (bytes <= 0)
        return 0;
    return send_frame(host, channel, bytes) == 0 ? 1 : -1;
}

/* Sends all output. Gives -1 if the host has gone. */
static int relay(int host, int files[CHANNELS])
{
    while (files[OUTPUT] >= 0 || files[ERRORS] >= 0) {
        fd_set ready;
        FD_ZERO(&ready);
        FD_SET(host, &ready);
        int last = host;
        for (int channel = OUTPUT; channel < CHANNELS; channel++) {
            if (files[channel] >= 0)
                FD_SET(files[channel], &ready);
            if (files[channel] > last)
                last = files[channel];
        }
        if (select(last + 1, &ready, NULL, NULL, NULL) < 0)
            return -1;
        /* The host has nothing to say while the script runs: this is its end. */
        if (FD_ISSET(host, &ready))
            return -1;
        for (int channel = OUTPUT; channel < CHANNELS; channel++) {
            if (files[channel] < 0 || !FD_ISSET(files[channel], &ready))
                continue;
            int more = pass(host, channel, files[channel]);
            if (more < 0)
                return -1;
            if (more == 0) {
                close(files[channel]);
                files[channel] = -1;
            }
        }
    }
    return 0;
}

static void serve(int host)
{
    int output[2], errors[2], status;
    if (send_frame(host, SERVER, 0) != 0 || receive_script(host) != 0 || pipe(output) != 0)
        return;
    if (pipe(errors) != 0) {
        close(output[0]);
        close(output[1]);
        return;
    }
    pid_t shell = start(host, output, errors);
    close(output[1]);
    close(errors[1]);
    int files[CHANNELS] = {host, output[0], errors[0]};
    int result = shell > 0 ? relay(host, files) : -1;
    for (int channel = OUTPUT; channel < CHANNELS; channel++)
        if (files[channel] >= 0)
            close(files[channel]);
    if (shell <= 0)
        return;
    if (result != 0)
        kill(shell, SIGKILL);
    if (waitpid(shell, &status, 0) != shell || result != 0)
        return;
    frame[HEADER] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    send_frame(host, SERVER, 1);
}

static int fail(const char *what)
{
    fprintf(stderr, "benchdriverserver: %s: %s\n", what, strerror(errno));
    return 1;
}

int main(int argc, char *argv[])
{
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in all = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : PORT)};
    if (listener < 0)
        return fail("socket");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&all, sizeof all) != 0)
        return fail("bind");
    if (listen(listener, 8) != 0)
        return fail("listen");
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        int host = accept(listener, NULL, NULL);
        if (host < 0)
            continue;
        setsockopt(host, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        serve(host);
        close(host);
    }
}
