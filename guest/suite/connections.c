/*
 * Connections by TCP to a server outside (ring3 bench server), whose address and port (ADDRESS:PORT) stand
 * in the place of a file.
 *
 * A connection begins with a byte that says what is to be done: a PING is answered by one byte. SEND and
 * RECEIVE are followed by the number of bytes (32 bits, the low byte first), and those bytes go to the
 * server or come from it. Each 32-bit word of them is its own number. What was sent is answered by one byte
 * if it arrived so. Then the server closes the connection.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "suite.h"

#define PING 'p'
#define SEND 's'
#define RECEIVE 'r'

#define RECORD 65536u
#define WORDS (RECORD / sizeof(uint32_t))

static uint32_t buffer[WORDS];

/* Reads ADDRESS:PORT. */
static struct sockaddr_in address(const char *text)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    char host[INET_ADDRSTRLEN] = "";
    const char *colon = strchr(text, ':');
    if (colon != NULL && colon - text < (long)sizeof host) {
        memcpy(host, text, colon - text);
        to.sin_port = htons(atoi(colon + 1));
    }
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) {
        errno = EINVAL;
        fail(text);
    }
    return to;
}

static void put(int stream, const void *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t now = write(stream, (const char *)from + done, bytes - done);
        if (now <= 0)
            fail("write");
        done += now;
    }
}

static void get(int stream, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t now = read(stream, (char *)to + done, bytes - done);
        if (now == 0)
            errno = EPIPE;
        if (now <= 0)
            fail("read");
        done += now;
    }
}

static int connected(const struct sockaddr_in *to)
{
    int stream = socket(AF_INET, SOCK_STREAM, 0);
    if (stream < 0)
        fail("socket");
    if (connect(stream, (const struct sockaddr *)to, sizeof *to) != 0)
        fail("connect");
    return stream;
}

/* Waits until the server has closed the connection, so that the server's side stays in TIME-WAIT. */
static void close_after_server(int stream)
{
    char more;
    if (read(stream, &more, 1) != 0)
        fail("the end of the connection");
    close(stream);
}

static uint32_t answer(int stream)
{
    uint8_t byte;
    get(stream, &byte, 1);
    return byte;
}

/* One byte each way in a connection of its own. */
uint32_t io_network_latency(uint32_t count, const char *path)
{
    struct sockaddr_in to = address(path);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        int stream = connected(&to);
        put(stream, &(char){PING}, 1);
        sum = mix(sum, answer(stream));
        close_after_server(stream);
    }
    return sum;
}

/* A connection in which BYTES are to be sent or received. */
static int begin(const struct sockaddr_in *to, uint8_t kind, uint32_t bytes)
{
    int stream = connected(to);
    uint8_t request[] = {kind, bytes, bytes >> 8, bytes >> 16, bytes >> 24};
    put(stream, request, sizeof request);
    return stream;
}

/* COUNT records of 64 KiB to the server, and as many from it. */
uint32_t io_network_throughput(uint32_t count, const char *path)
{
    struct sockaddr_in to = address(path);
    int stream = begin(&to, SEND, count * RECORD);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t word = 0; word < WORDS; word++)
            buffer[word] = i * WORDS + word;
        put(stream, buffer, sizeof buffer);
    }
    uint32_t sum = mix(0, answer(stream));
    close_after_server(stream);

    stream = begin(&to, RECEIVE, count * RECORD);
    for (uint32_t i = 0; i < count; i++) {
        get(stream, buffer, sizeof buffer);
        sum = mix(sum, mix(buffer[0], buffer[WORDS - 1]));
    }
    close_after_server(stream);
    return sum;
}
