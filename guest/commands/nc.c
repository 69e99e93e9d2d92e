/* nc [-u] [-N] HOST PORT, nc [-u] [-N] -l [ADDRESS] PORT: connects, or waits for a connection; then standard
   input goes to the peer, and what comes from it to standard output, until the peer ends. With -N the end of
   standard input is passed on to the peer. */

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <tern/files.h>
#include <unistd.h>

static char buffer[16384];

static int fail(const char *what)
{
    fprintf(stderr, "nc: %s: %s\n", what, strerror(errno));
    return -1;
}

static struct addrinfo *look_up(const char *host, const char *port, int is_udp, int listens)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = is_udp ? SOCK_DGRAM : SOCK_STREAM,
                             .ai_flags = listens ? AI_PASSIVE : 0};
    struct addrinfo *found;
    int error = getaddrinfo(host, port, &hints, &found);
    if (!error)
        return found;
    fprintf(stderr, "nc: %s port %s: %s\n", host ? host : "*", port, gai_strerror(error));
    return NULL;
}

static int dial(const struct addrinfo *to)
{
    for (; to; to = to->ai_next) {
        int fd = socket(to->ai_family, to->ai_socktype, to->ai_protocol);
        if (fd < 0)
            return fail("socket");
        if (connect(fd, to->ai_addr, to->ai_addrlen) == 0)
            return fd;
        fail("connect");
        close(fd);
    }
    return -1;
}

/* For UDP, the peer is whoever sends first. */
static int await_peer(int fd, int is_udp)
{
    struct sockaddr_in peer;
    socklen_t bytes = sizeof peer;
    if (!is_udp) {
        if (listen(fd, 1) < 0)
            return fail("listen");
        int connection = accept(fd, NULL, NULL);
        close(fd);
        return connection < 0 ? fail("accept") : connection;
    }
    if (recvfrom(fd, buffer, 1, MSG_PEEK, (struct sockaddr *)&peer, &bytes) < 0 ||
        connect(fd, (struct sockaddr *)&peer, bytes) < 0)
        return fail("receive");
    return fd;
}

static int serve(const struct addrinfo *at, int is_udp)
{
    int on = 1, fd = socket(at->ai_family, at->ai_socktype, at->ai_protocol);
    if (fd < 0)
        return fail("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, at->ai_addr, at->ai_addrlen) < 0)
        return fail("bind");
    return await_peer(fd, is_udp);
}

/* Copies what there is; returns whether more can come, and -1 after an error. */
static int pass(int from, int to)
{
    ssize_t got = read(from, buffer, sizeof buffer);
    if (got < 0)
        return fail("read");
    if (got && write_all(to, buffer, got) < 0)
        return fail("write");
    return got > 0;
}

static int exchange(int fd, int passes_end)
{
    int reads_input = 1;
    for (;;) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        if (reads_input)
            FD_SET(0, &set);
        if (select(fd + 1, &set, NULL, NULL, NULL) < 0)
            return fail("select");
        if (FD_ISSET(fd, &set)) {
            int result = pass(fd, 1);
            if (result <= 0)
                return result;
        }
        if (reads_input && FD_ISSET(0, &set)) {
            reads_input = pass(0, fd);
            if (reads_input < 0)
                return -1;
            if (!reads_input && passes_end)
                shutdown(fd, SHUT_WR);
        }
    }
}

int main(int argc, char **argv)
{
    int is_udp = 0, listens = 0, passes_end = 0, is_wrong = 0;
    for (int option; (option = getopt(argc, argv, "ulN")) != -1;) {
        is_udp |= option == 'u';
        listens |= option == 'l';
        passes_end |= option == 'N';
        is_wrong |= option == '?';
    }
    int words = argc - optind;
    if (is_wrong || words > 2 || words < (listens ? 1 : 2)) {
        fprintf(stderr, "usage: nc [-u] [-N] HOST PORT | nc [-u] [-N] -l [ADDRESS] PORT\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    struct addrinfo *found = look_up(words == 2 ? argv[optind] : NULL, argv[argc - 1], is_udp, listens);
    int fd = !found ? -1 : listens ? serve(found, is_udp) : dial(found);
    return fd < 0 || exchange(fd, passes_end) < 0;
}
