/* ping [-c COUNT] [-i SECONDS] [-s BYTES] HOST: sends echo requests and shows the answers. */

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <tern/lib.h>
#include <tern/net.h>
#include <unistd.h>

#define HEADER 8u
#define ECHO 8
#define ECHO_REPLY 0
#define MOST (NET_MESSAGE_MAX - HEADER)

static uint8_t packet[NET_MESSAGE_MAX], answer[NET_MESSAGE_MAX];

static uint64_t microseconds(void)
{
    struct times times;
    sys_times(&times);
    return times.microseconds;
}

/* Waits until `end` for the answer to number `number`; returns its bytes, 0 if there is none, or an error. */
static int await(int fd, uint32_t number, uint64_t end)
{
    for (uint64_t now = microseconds(); now < end; now = microseconds()) {
        struct timeval limit = {(end - now) / 1000000, (end - now) % 1000000};
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        if (select(fd + 1, &set, NULL, NULL, &limit) <= 0)
            continue;
        ssize_t got = recv(fd, answer, sizeof answer, MSG_DONTWAIT);
        if (got < 0)
            return -errno;
        if (got >= (ssize_t)HEADER && answer[0] == ECHO_REPLY
            && (uint32_t)(answer[6] << 8 | answer[7]) == number)
            return got;
    }
    return 0;
}

/* Returns whether the right answer came. */
static int ping(int fd, const char *name, uint32_t number, uint32_t bytes, uint64_t wait)
{
    packet[0] = ECHO;
    packet[6] = number >> 8;
    packet[7] = number;
    uint64_t start = microseconds();
    int got = send(fd, packet, HEADER + bytes, 0) < 0 ? -errno : await(fd, number & 0xffff, start + wait);
    uint64_t took = microseconds() - start;
    if (got <= 0) {
        printf("%u: %s\n", (unsigned)number, got ? strerror(-got) : "no answer");
        return 0;
    }
    int is_right = (uint32_t)got == HEADER + bytes && memcmp(answer + HEADER, packet + HEADER, bytes) == 0;
    printf("%u: %d bytes from %s in %u.%03u ms%s\n", (unsigned)number, got, name, (unsigned)(took / 1000),
           (unsigned)(took % 1000), is_right ? "" : ", which are others");
    return is_right;
}

int main(int argc, char **argv)
{
    uint32_t count = 4, bytes = 56, answers = 0, seconds = 1;
    for (int option; (option = getopt(argc, argv, "c:i:s:")) != -1;) {
        uint32_t value = option == '?' ? 0 : strtoul(optarg, NULL, 10);
        if (option == 'c')
            count = value;
        else if (option == 'i')
            seconds = value;
        else if (option == 's' && value <= MOST)
            bytes = value;
        else
            optind = argc;
    }
    if (optind != argc - 1) {
        fprintf(stderr, "usage: ping [-c COUNT] [-i SECONDS] [-s BYTES] HOST\n");
        return 2;
    }
    struct hostent *host = gethostbyname(argv[optind]);
    if (!host) {
        fprintf(stderr, "ping: %s: %s\n", argv[optind], hstrerror(h_errno));
        return 1;
    }
    struct sockaddr_in to = {.sin_family = AF_INET};
    memcpy(&to.sin_addr, host->h_addr, sizeof to.sin_addr);
    int fd = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0) {
        perror("ping");
        return 1;
    }
    for (uint32_t i = 0; i < bytes; i++)
        packet[HEADER + i] = i;
    for (uint32_t i = 1; i <= count; i++) {
        answers += ping(fd, inet_ntoa(to.sin_addr), i, bytes, 1000000);
        if (i < count)
            sleep(seconds);
    }
    printf("%u sent, %u answered\n", (unsigned)count, (unsigned)answers);
    return answers != count;
}
