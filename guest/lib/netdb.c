/* Names of hosts. */

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dns.h"

int h_errno;

/* A line of /etc/hosts is an address and its names. */
static int is_in_line(char *line, const char *name, uint32_t *address)
{
    struct in_addr found;
    line[strcspn(line, "#")] = 0;
    char *word = strtok(line, " \t\n");
    if (!word || !inet_aton(word, &found))
        return 0;
    while ((word = strtok(NULL, " \t\n")))
        if (strcmp(word, name) == 0) {
            *address = found.s_addr;
            return 1;
        }
    return 0;
}

static int look_up(const char *name, struct dns_answer *answer)
{
    char line[256];
    struct in_addr number;
    FILE *file;
    memset(answer, 0, sizeof *answer);
    if (strlen(name) >= DNS_NAME)
        return HOST_NOT_FOUND;
    strcpy(answer->name, name);
    if (inet_aton(name, &number)) {
        answer->addresses[answer->count++] = number.s_addr;
        return 0;
    }
    file = fopen("/etc/hosts", "r");
    while (file && !answer->count && fgets(line, sizeof line, file))
        answer->count = is_in_line(line, name, &answer->addresses[0]);
    if (file)
        fclose(file);
    if (!answer->count && strcmp(name, "localhost") == 0)
        answer->addresses[answer->count++] = htonl(INADDR_LOOPBACK);
    return answer->count ? 0 : dns_ask(name, answer);
}

struct hostent *gethostbyname(const char *name)
{
    static struct dns_answer answer;
    static char *addresses[DNS_ADDRESSES + 1], *aliases[1];
    static struct hostent host;
    h_errno = look_up(name, &answer);
    if (h_errno)
        return NULL;
    for (uint32_t i = 0; i < answer.count; i++)
        addresses[i] = (char *)&answer.addresses[i];
    addresses[answer.count] = NULL;
    host = (struct hostent){answer.name, aliases, AF_INET, 4, addresses};
    return &host;
}

const char *hstrerror(int error)
{
    static const char *const texts[] = {"Success", "No such host", "No answer from a name server",
                                        "Name servers cannot be asked", "The name has no address"};
    return error >= 0 && error <= NO_DATA ? texts[error] : "Unknown error";
}

const char *gai_strerror(int error)
{
    switch (error) {
    case 0:
        return "Success";
    case EAI_NONAME:
        return "No such host";
    case EAI_AGAIN:
        return "No answer from a name server";
    case EAI_FAMILY:
        return "No such family of addresses";
    case EAI_SOCKTYPE:
        return "No such type of socket";
    case EAI_SERVICE:
        return "Not the number of a port";
    case EAI_MEMORY:
        return "Out of memory";
    default:
        return "Names cannot be looked up";
    }
}

/* One element; its address lies behind it. */
static struct addrinfo *new_element(uint32_t address, uint16_t port, int type, int protocol, const char *name)
{
    uint32_t name_bytes = name ? strlen(name) + 1 : 0;
    struct addrinfo *info = calloc(1, sizeof *info + sizeof(struct sockaddr_in) + name_bytes);
    if (!info)
        return NULL;
    struct sockaddr_in *to = (struct sockaddr_in *)(info + 1);
    *to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port, .sin_addr = {address}};
    info->ai_family = AF_INET;
    info->ai_socktype = type;
    info->ai_protocol = protocol ? protocol : type == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP;
    info->ai_addrlen = sizeof *to;
    info->ai_addr = (struct sockaddr *)to;
    if (name)
        info->ai_canonname = memcpy(to + 1, name, name_bytes);
    return info;
}

static int find_host(const char *host, int flags, struct dns_answer *answer)
{
    struct in_addr number;
    if (host && flags & AI_NUMERICHOST && !inet_aton(host, &number))
        return EAI_NONAME;
    if (host) {
        int error = look_up(host, answer);
        return error == 0 ? 0 : error == TRY_AGAIN ? EAI_AGAIN : error == NO_RECOVERY ? EAI_FAIL : EAI_NONAME;
    }
    answer->count = 1;
    answer->addresses[0] = htonl(flags & AI_PASSIVE ? INADDR_ANY : INADDR_LOOPBACK);
    return 0;
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    static const struct addrinfo none;
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM};
    struct dns_answer answer;
    char *end = NULL;
    unsigned long port = service ? strtoul(service, &end, 10) : 0;
    struct addrinfo **last = found;
    *found = NULL;
    if (!hints)
        hints = &none;
    if ((!host && !service) || (service && (!*service || *end || port > 65535)))
        return host || service ? EAI_SERVICE : EAI_NONAME;
    if (hints->ai_family != AF_UNSPEC && hints->ai_family != AF_INET)
        return EAI_FAMILY;
    if (hints->ai_socktype && hints->ai_socktype != SOCK_STREAM && hints->ai_socktype != SOCK_DGRAM)
        return EAI_SOCKTYPE;
    int error = find_host(host, hints->ai_flags, &answer);
    for (uint32_t i = 0; !error && i < answer.count; i++)
        for (int k = 0; k < 2; k++) {
            if (hints->ai_socktype && hints->ai_socktype != types[k])
                continue;
            const char *name = hints->ai_flags & AI_CANONNAME && !*found ? answer.name : NULL;
            *last = new_element(answer.addresses[i], htons(port), types[k], hints->ai_protocol, name);
            if (!*last) {
                freeaddrinfo(*found);
                *found = NULL;
                return EAI_MEMORY;
            }
            last = &(*last)->ai_next;
        }
    return error;
}

void freeaddrinfo(struct addrinfo *list)
{
    while (list) {
        struct addrinfo *next = list->ai_next;
        free(list);
        list = next;
    }
}
