/*
 * Packets and streams between two guests, for whoever measures networks.
 *
 * One guest serves; the other one does what is to be measured. A stream begins with a byte that says what is
 * to be done with the rest: it is thrown away, and its end is answered by one byte, or each record is sent
 * back. Datagrams are sent back, but for those that are thrown away.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "suite.h"

#define LARGEST 65536u
#define PORT 5001
#define THROW_AWAY 'a'
#define SEND_BACK 'b'
/* Datagrams are lost where somebody has no room: after so many milliseconds another one is sent. */
#define LOST_AFTER 200
/* A flood has so many echo requests under way, and sends another one after so many milliseconds without any
   reply (as ping -f of iputils). */
#define FLOOD_WINDOW 8u
#define FLOOD_PATIENCE 10

static uint8_t buffer[LARGEST];

/* Writes all of it. */
static void put(int stream, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t now = write(stream, buffer + done, bytes - done);
        if (now <= 0)
            fail("write");
        done += now;
    }
}

/* Reads all of it; 0 at the end of the stream. */
static int get(int stream, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t now = read(stream, buffer + done, bytes - done);
        if (now < 0)
            fail("read");
        if (now == 0)
            return 0;
        done += now;
    }
    return 1;
}

static void serve_stream(int stream)
{
    int yes = 1;
    setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (!get(stream, 1))
        return;
    int sends_back = buffer[0] == SEND_BACK;
    for (;;) {
        ssize_t bytes = read(stream, buffer, sizeof buffer);
        if (bytes <= 0)
            break;
        if (sends_back)
            put(stream, bytes);
    }
    put(stream, 1);
}

static void serve_datagrams(int socket)
{
    for (;;) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        ssize_t bytes = recvfrom(socket, buffer, sizeof buffer, 0, (struct sockaddr *)&from, &length);
        if (bytes > 0 && buffer[0] == SEND_BACK)
            sendto(socket, buffer, bytes, 0, (struct sockaddr *)&from, length);
    }
}

static int bound(int type)
{
    int yes = 1, new = socket(AF_INET, type, 0);
    struct sockaddr_in all = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    if (new < 0)
        fail("socket");
    setsockopt(new, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(new, (struct sockaddr *)&all, sizeof all) != 0)
        fail("bind");
    return new;
}

/* Serves until it is killed. */
static int serve(void)
{
    int datagrams = bound(SOCK_DGRAM), streams = bound(SOCK_STREAM);
    if (listen(streams, 8) != 0)
        fail("listen");
    signal(SIGCHLD, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0)
        serve_datagrams(datagrams);
    printf("serving\n");
    fflush(stdout);
    for (;;) {
        int stream = accept(streams, NULL, NULL);
        if (stream < 0)
            continue;
        child = fork();
        if (child == 0) {
            serve_stream(stream);
            _exit(0);
        }
        close(stream);
    }
}

static int connected(const struct sockaddr_in *to, uint8_t kind)
{
    int yes = 1, stream = socket(AF_INET, SOCK_STREAM, 0);
    if (stream < 0 || connect(stream, (const struct sockaddr *)to, sizeof *to) != 0)
        fail("connect");
    setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    buffer[0] = kind;
    put(stream, 1);
    return stream;
}

/* COUNT records of BYTES, which all have come when this ends. */
static void stream(const struct sockaddr_in *to, size_t bytes, uint32_t count)
{
    int stream = connected(to, THROW_AWAY);
    for (uint32_t i = 0; i < count; i++)
        put(stream, bytes);
    shutdown(stream, SHUT_WR);
    if (!get(stream, 1))
        fail("the answer");
    close(stream);
}

/* COUNT records of BYTES, each of which comes back before the next one goes. */
static void stream_round_trips(const struct sockaddr_in *to, size_t bytes, uint32_t count)
{
    int stream = connected(to, SEND_BACK);
    for (uint32_t i = 0; i < count; i++) {
        put(stream, bytes);
        if (!get(stream, bytes))
            fail("the answer");
    }
    close(stream);
}

/* Makes an echo request of BYTES with that number (RFC 792). */
static void make_ping(uint8_t *packet, size_t bytes, uint16_t number)
{
    struct icmphdr *header = (struct icmphdr *)packet;
    memset(packet, SEND_BACK, bytes);
    *header = (struct icmphdr){.type = ICMP_ECHO, .un.echo.id = 7, .un.echo.sequence = htons(number)};
    uint32_t sum = 0;
    for (size_t at = 0; at + 1 < bytes; at += 2)
        sum += packet[at] | packet[at + 1] << 8;
    if (bytes & 1)
        sum += packet[bytes - 1];
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    header->checksum = ~sum;
}

/* The same with datagrams, or with echo requests (ping). Tells how many had to be sent again. */
static uint32_t datagram_round_trips(const struct sockaddr_in *to, size_t bytes, uint32_t count, int pings)
{
    int socket_ = pings ? socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) : socket(AF_INET, SOCK_DGRAM, 0);
    if (socket_ < 0 || connect(socket_, (const struct sockaddr *)to, sizeof *to) != 0)
        fail("socket");
    uint32_t again = 0;
    static uint8_t packet[LARGEST];
    for (uint32_t i = 0; i < count;) {
        memset(packet, SEND_BACK, bytes);
        if (pings)
            make_ping(packet, bytes, i);
        if (send(socket_, packet, bytes, 0) != (ssize_t)bytes)
            fail("send");
        for (;;) {
            struct pollfd wait = {.fd = socket_, .events = POLLIN};
            if (poll(&wait, 1, LOST_AFTER) == 0) {
                again++;
                break;
            }
            ssize_t got = recv(socket_, buffer, sizeof buffer, 0);
            const struct icmphdr *header = (const struct icmphdr *)(buffer + 20);
            if (!pings ? got == (ssize_t)bytes
                       : got == (ssize_t)bytes + 20 && header->type == ICMP_ECHOREPLY &&
                             header->un.echo.sequence == htons(i)) {
                i++;
                break;
            }
        }
    }
    close(socket_);
    return again;
}

/* COUNT echo requests of BYTES, each sent once: the next one as soon as there are fewer than FLOOD_WINDOW
   under way. Tells how many were lost. */
static uint32_t flood(const struct sockaddr_in *to, size_t bytes, uint32_t count)
{
    int socket_ = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
    if (socket_ < 0 || connect(socket_, (const struct sockaddr *)to, sizeof *to) != 0)
        fail("socket");
    static uint8_t packet[LARGEST];
    /* By its number, that a request is under way. */
    static uint8_t is_under_way[1 << 16];
    uint32_t sent = 0, back = 0, under_way = 0;
    while (sent < count || back < count) {
        while (sent < count && under_way < FLOOD_WINDOW) {
            make_ping(packet, bytes, sent);
            if (send(socket_, packet, bytes, 0) < 0 && errno != ENOBUFS)
                fail("send");
            is_under_way[sent++ & 0xffff] = 1;
            under_way++;
        }
        struct pollfd wait = {.fd = socket_, .events = POLLIN};
        if (poll(&wait, 1, sent < count ? FLOOD_PATIENCE : LOST_AFTER) == 0) {
            if (sent == count)
                break;
            /* Which one it is does not matter: should it come after all, it counts. */
            if (under_way > 0)
                under_way--;
            continue;
        }
        ssize_t got = recv(socket_, buffer, sizeof buffer, 0);
        const struct icmphdr *header = (const struct icmphdr *)(buffer + 20);
        if (got != (ssize_t)bytes + 20 || header->type != ICMP_ECHOREPLY)
            continue;
        uint16_t number = ntohs(header->un.echo.sequence);
        if (!is_under_way[number])
            continue;
        is_under_way[number] = 0;
        back++;
        if (under_way > 0)
            under_way--;
    }
    close(socket_);
    return count - back;
}

/* Datagrams one after the other, whether they come or not. */
static void datagrams(const struct sockaddr_in *to, size_t bytes, uint32_t count)
{
    int socket_ = socket(AF_INET, SOCK_DGRAM, 0);
    if (socket_ < 0 || connect(socket_, (const struct sockaddr *)to, sizeof *to) != 0)
        fail("socket");
    memset(buffer, THROW_AWAY, bytes);
    for (uint32_t i = 0; i < count; i++)
        if (send(socket_, buffer, bytes, 0) < 0 && errno != ENOBUFS)
            fail("send");
    close(socket_);
}

/* serve, or ADDRESS stream|stream-echo|datagram|datagram-echo|ping|flood BYTES COUNT. Prints how many had to
   be sent again or, of a flood, were lost. */
int network(int count_of_arguments, char *arguments[])
{
    if (count_of_arguments == 1 && strcmp(arguments[0], "serve") == 0)
        return serve();
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    if (count_of_arguments != 4 || inet_pton(AF_INET, arguments[0], &to.sin_addr) != 1)
        return 2;
    const char *kind = arguments[1];
    size_t bytes = strtoul(arguments[2], NULL, 10);
    uint32_t count = strtoul(arguments[3], NULL, 10), again = 0;
    int is_ping = strcmp(kind, "ping") == 0, is_flood = strcmp(kind, "flood") == 0;
    if (bytes < (is_ping || is_flood ? sizeof(struct icmphdr) : 1) || bytes > LARGEST)
        return 2;
    memset(buffer, THROW_AWAY, sizeof buffer);
    if (strcmp(kind, "stream") == 0)
        stream(&to, bytes, count);
    else if (strcmp(kind, "stream-echo") == 0)
        stream_round_trips(&to, bytes, count);
    else if (strcmp(kind, "datagram") == 0)
        datagrams(&to, bytes, count);
    else if (strcmp(kind, "datagram-echo") == 0 || is_ping)
        again = datagram_round_trips(&to, bytes, count, is_ping);
    else if (is_flood)
        again = flood(&to, bytes, count);
    else
        return 2;
    printf("network %u %u\n", count, again);
    return 0;
}
