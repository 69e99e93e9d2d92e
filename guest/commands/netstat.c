/* netstat: shows all sockets. */

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <tern/net.h>

static const char *end_text(const struct net_address *end, char *to, size_t bytes)
{
    char address[INET_ADDRSTRLEN], port[8] = "*";
    inet_ntop(AF_INET, &end->address, address, sizeof address);
    if (end->port)
        snprintf(port, sizeof port, "%u", ntohs(end->port));
    snprintf(to, bytes, "%s:%s", end->address ? address : "*", port);
    return to;
}

static void show(const struct net_socket *s)
{
    static const char *const kinds[] = {"tcp", "udp", "icmp"};
    static const char *const states[] = {"-", "listening", "SYN sent", "SYN received", "established",
                                         "FIN wait 1", "FIN wait 2", "close wait", "closing", "last ACK",
                                         "time wait"};
    char local[32], peer[32];
    printf("%-5s %7u %7u %6u %-21s %-21s %s\n", s->kind < 3 ? kinds[s->kind] : "?", (unsigned)s->received,
           (unsigned)s->unsent, (unsigned)s->resent, end_text(&s->local, local, sizeof local),
           end_text(&s->peer, peer, sizeof peer),
           s->state < sizeof states / sizeof *states ? states[s->state] : "?");
}

int main(void)
{
    static struct net_sockets list;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    printf("%-5s %7s %7s %6s %-21s %-21s %s\n", "KIND", "UNREAD", "UNSENT", "RESENT", "LOCAL", "PEER",
           "STATE");
    do {
        if (fd < 0 || ioctl(fd, NET_SOCKETS, &list) < 0) {
            fprintf(stderr, "netstat: %s\n", strerror(errno));
            return 1;
        }
        for (uint32_t i = 0; i < list.count && i < NET_SOCKETS_AT_ONCE; i++)
            show(&list.sockets[i]);
    } while (list.first);
    return 0;
}
