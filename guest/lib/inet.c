/* Addresses of the internet as text, and the order of bytes. */

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

uint16_t htons(uint16_t value)
{
    return value << 8 | value >> 8;
}

uint16_t ntohs(uint16_t value)
{
    return htons(value);
}

uint32_t htonl(uint32_t value)
{
    return value << 24 | (value & 0xff00) << 8 | (value >> 8 & 0xff00) | value >> 24;
}

uint32_t ntohl(uint32_t value)
{
    return htonl(value);
}

int inet_aton(const char *text, struct in_addr *to)
{
    uint8_t bytes[4];
    for (int i = 0; i < 4; i++) {
        uint32_t value = 0, digits = 0;
        for (; *text >= '0' && *text <= '9' && digits < 3; digits++)
            value = value * 10 + (uint32_t)(*text++ - '0');
        if (digits == 0 || value > 255 || *text++ != (i < 3 ? '.' : 0))
            return 0;
        bytes[i] = value;
    }
    memcpy(to, bytes, sizeof bytes);
    return 1;
}

int inet_pton(int family, const char *text, void *to)
{
    struct in_addr address;
    if (family != AF_INET) {
        errno = EAFNOSUPPORT;
        return -1;
    }
    if (!inet_aton(text, &address))
        return 0;
    memcpy(to, &address, sizeof address);
    return 1;
}

const char *inet_ntop(int family, const void *from, char *to, socklen_t bytes)
{
    const uint8_t *byte = from;
    char text[INET_ADDRSTRLEN];
    if (family != AF_INET) {
        errno = EAFNOSUPPORT;
        return NULL;
    }
    int length = snprintf(text, sizeof text, "%u.%u.%u.%u", byte[0], byte[1], byte[2], byte[3]);
    if ((socklen_t)length >= bytes) {
        errno = ENOSPC;
        return NULL;
    }
    return strcpy(to, text);
}

in_addr_t inet_addr(const char *text)
{
    struct in_addr address;
    return inet_aton(text, &address) ? address.s_addr : INADDR_NONE;
}

char *inet_ntoa(struct in_addr from)
{
    static char text[INET_ADDRSTRLEN];
    return (char *)inet_ntop(AF_INET, &from, text, sizeof text);
}
