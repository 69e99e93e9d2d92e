/* Questions to name servers (RFC 1035), for netdb.c. */

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <tern/lib.h>
#include <tern/net.h>
#include <unistd.h>
#include "dns.h"

#define PORT 53
#define PACKET 512             /* section 2.3.4 */
#define HEADER 12
#define TYPE_A 1
#define TYPE_CNAME 5
#define CLASS_IN 1
#define ROUNDS 3
#define SECONDS 2
#define POINTERS_MAX 32        /* of a compressed name; more of them lead in a circle */

static uint32_t servers_of_file(uint32_t *servers)
{
    char line[128], address[64];
    uint32_t count = 0;
    struct in_addr found;
    FILE *file = fopen("/etc/resolv.conf", "r");
    while (file && count < NET_NAMESERVERS && fgets(line, sizeof line, file))
        if (sscanf(line, "nameserver %63s", address) == 1 && inet_aton(address, &found))
            servers[count++] = found.s_addr;
    if (file)
        fclose(file);
    return count;
}

static uint32_t servers_of_interfaces(int fd, uint32_t *servers)
{
    struct net_interfaces list;
    uint32_t count = 0;
    if (ioctl(fd, NET_LIST, &list) < 0)
        return 0;
    for (uint32_t i = 0; i < list.count && i < NET_INTERFACES; i++)
        for (int k = 0; k < NET_NAMESERVERS && count < NET_NAMESERVERS; k++)
            if (list.interfaces[i].nameservers[k])
                servers[count++] = list.interfaces[i].nameservers[k];
    return count;
}

/* The name as labels (section 3.1). Returns the bytes, or 0 if it is no name. */
static uint32_t encode_name(const char *name, uint8_t *to)
{
    uint32_t used = 0;
    while (*name) {
        uint32_t length = strcspn(name, ".");
        if (length == 0 || length > 63 || used + length > 253)
            return 0;
        to[used++] = length;
        memcpy(to + used, name, length);
        used += length;
        name += length;
        if (*name == '.')
            name++;
    }
    to[used++] = 0;
    return used > 1 ? used : 0;
}

/* Skips a name (section 4.1.4). Returns what is behind it, or 0 if it does not end in the packet. */
static uint32_t skip_name(const uint8_t *packet, uint32_t bytes, uint32_t at)
{
    while (at < bytes) {
        if (packet[at] >= 0xc0)
            return at + 2 <= bytes ? at + 2 : 0;
        if (packet[at] == 0)
            return at + 1;
        at += packet[at] + 1u;
    }
    return 0;
}

/* The name as text, for h_name. */
static void decode_name(const uint8_t *packet, uint32_t bytes, uint32_t at, char *text)
{
    uint32_t used = 0, pointers = 0;
    while (at < bytes && packet[at]) {
        uint32_t length = packet[at];
        if (length >= 0xc0) {
            if (at + 1 >= bytes || ++pointers > POINTERS_MAX)
                break;
            at = (length & 0x3f) << 8 | packet[at + 1];
            continue;
        }
        if (at + 1 + length > bytes || used + length + 2 > DNS_NAME)
            break;
        if (used)
            text[used++] = '.';
        memcpy(text + used, packet + at + 1, length);
        used += length;
        at += length + 1;
    }
    text[used] = 0;
}

static uint32_t word_at(const uint8_t *packet, uint32_t at)
{
    return (uint32_t)packet[at] << 8 | packet[at + 1];
}

/* Takes the addresses out of an answer to the question. Returns 0, an error of netdb.h, or -1 if it is
   none. */
static int read_answer(const uint8_t *packet, uint32_t bytes, const uint8_t *question,
                       uint32_t question_bytes, struct dns_answer *answer)
{
    if (bytes < question_bytes || memcmp(packet, question, 2) || !(packet[2] & 0x80) ||
        word_at(packet, 4) != 1 || memcmp(packet + HEADER, question + HEADER, question_bytes - HEADER))
        return -1;
    uint32_t code = packet[3] & 15, count = word_at(packet, 6), at = question_bytes;
    if (code)
        return code == 3 ? HOST_NOT_FOUND : code == 2 ? TRY_AGAIN : NO_RECOVERY;
    answer->count = 0;
    decode_name(packet, bytes, HEADER, answer->name);
    while (count-- && (at = skip_name(packet, bytes, at)) != 0 && at + 10 <= bytes) {
        uint32_t type = word_at(packet, at), class = word_at(packet, at + 2),
                 length = word_at(packet, at + 8);
        at += 10;
        if (at + length > bytes)
            break;
        if (type == TYPE_A && class == CLASS_IN && length == 4 && answer->count < DNS_ADDRESSES)
            memcpy(&answer->addresses[answer->count++], packet + at, 4);
        else if (type == TYPE_CNAME && class == CLASS_IN)
            decode_name(packet, bytes, at, answer->name);
        at += length;
    }
    return answer->count ? 0 : NO_DATA;
}

/* Asks one server once. */
static int ask(int fd, uint32_t server, const uint8_t *question, uint32_t bytes, struct dns_answer *answer)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr = {server}};
    struct timeval limit = {.tv_sec = SECONDS};
    uint8_t packet[PACKET];
    if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0 || send(fd, question, bytes, 0) < 0)
        return TRY_AGAIN;
    /* Answers to others' questions do not prolong the wait for ever. */
    for (int i = 0; i < 16; i++) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        if (select(fd + 1, &set, NULL, NULL, &limit) <= 0)
            return TRY_AGAIN;
        ssize_t got = recv(fd, packet, sizeof packet, MSG_DONTWAIT);
        int result = got < 0 ? TRY_AGAIN : read_answer(packet, got, question, bytes, answer);
        if (result >= 0)
            return result;
    }
    return TRY_AGAIN;
}

int dns_ask(const char *name, struct dns_answer *answer)
{
    uint8_t question[PACKET] = {0};
    uint32_t servers[NET_NAMESERVERS], length = encode_name(name, question + HEADER);
    struct times times;
    int result = TRY_AGAIN;
    if (length == 0)
        return HOST_NOT_FOUND;
    sys_times(&times);
    uint32_t id = (uint32_t)(times.tsc ^ times.tsc >> 16 ^ times.run);
    question[0] = id;
    question[1] = id >> 8;
    question[2] = 1; /* recursion desired */
    question[5] = 1; /* one question */
    question[HEADER + length + 1] = TYPE_A;
    question[HEADER + length + 3] = CLASS_IN;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0)
        return NO_RECOVERY;
    uint32_t count = servers_of_file(servers);
    if (count == 0)
        count = servers_of_interfaces(fd, servers);
    for (uint32_t i = 0; i < ROUNDS * count && result == TRY_AGAIN; i++)
        result = ask(fd, servers[i % count], question, HEADER + length + 4, answer);
    close(fd);
    return count ? result : NO_RECOVERY;
}
