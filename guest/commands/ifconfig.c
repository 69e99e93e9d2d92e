/* ifconfig [INTERFACE [ADDRESS[/BITS] [gateway ADDRESS] [dns ADDRESS]... | dhcp]]: shows interfaces, or sets
   one. */

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <tern/net.h>

static int fail(const char *what)
{
    fprintf(stderr, "ifconfig: %s: %s\n", what, strerror(errno));
    return 1;
}

static const char *text(uint32_t address)
{
    return inet_ntoa((struct in_addr){address});
}

static int bits_of(uint32_t mask)
{
    int bits = 0;
    for (mask = ntohl(mask); mask & 0x80000000u; mask <<= 1)
        bits++;
    return bits;
}

static void show(const struct net_interface *i)
{
    static const char *const ways[] = {"", ", asks by DHCP", ", by DHCP"};
    printf("%s: %s", i->name, i->up ? "up" : "without a driver");
    if (i->address)
        printf(", %s/%d", text(i->address), bits_of(i->mask));
    printf("%s", i->dhcp < 3 ? ways[i->dhcp] : "");
    if (i->lease)
        printf(" for %u s", (unsigned)i->lease);
    if (i->drivers)
        printf("\n    address %02x:%02x:%02x:%02x:%02x:%02x, driver number %u", i->ethernet[0],
               i->ethernet[1], i->ethernet[2], i->ethernet[3], i->ethernet[4], i->ethernet[5],
               (unsigned)i->drivers);
    if (i->gateway)
        printf("\n    gateway %s", text(i->gateway));
    for (int k = 0; k < NET_NAMESERVERS; k++)
        if (i->nameservers[k])
            printf("%s %s", k ? "," : "\n    name servers", text(i->nameservers[k]));
    printf("\n    in %u frames, %u bytes; out %u frames, %u bytes; %u without room\n", (unsigned)i->frames_in,
           (unsigned)i->bytes_in, (unsigned)i->frames_out, (unsigned)i->bytes_out, (unsigned)i->dropped);
}

static int show_all(int fd, const char *name)
{
    struct net_interfaces list;
    int found = 0;
    if (ioctl(fd, NET_LIST, &list) < 0)
        return fail("interfaces");
    for (uint32_t i = 0; i < list.count && i < NET_INTERFACES; i++)
        if (!name || strcmp(list.interfaces[i].name, name) == 0)
            show(&list.interfaces[i]), found = 1;
    errno = ENODEV;
    return found ? 0 : fail(name ? name : "interfaces");
}

static int parse_address(const char *from, uint32_t *to)
{
    struct in_addr address;
    if (!from || !inet_aton(from, &address)) {
        fprintf(stderr, "ifconfig: %s is no address\n", from ? from : "nothing");
        return 0;
    }
    *to = address.s_addr;
    return 1;
}

/* ADDRESS/BITS, of which BITS is 24 by default. */
static int parse_network(char *from, struct net_setting *to)
{
    char *slash = strchr(from, '/'), *end = "";
    unsigned long bits = 24;
    if (slash) {
        *slash = 0;
        bits = strtoul(slash + 1, &end, 10);
    }
    if (*end || bits < 1 || bits > 32 || (slash && !slash[1])) {
        fprintf(stderr, "ifconfig: a network has 1 to 32 bits\n");
        return 0;
    }
    to->mask = htonl(~0u << (32 - bits));
    return parse_address(from, &to->address);
}

static int set(int fd, int words, char **word)
{
    struct net_setting setting = {.dhcp = strcmp(word[1], "dhcp") == 0};
    uint32_t servers = 0;
    strncpy(setting.name, word[0], sizeof setting.name - 1);
    if (!setting.dhcp && !parse_network(word[1], &setting))
        return 2;
    for (int i = 2; i < words; i += 2) {
        int is_server = strcmp(word[i], "dns") == 0 && servers < NET_NAMESERVERS;
        if (setting.dhcp || (!is_server && strcmp(word[i], "gateway"))) {
            fprintf(stderr, "ifconfig: %s has no meaning here\n", word[i]);
            return 2;
        }
        if (!parse_address(i + 1 < words ? word[i + 1] : NULL,
                           is_server ? &setting.nameservers[servers++] : &setting.gateway))
            return 2;
    }
    return ioctl(fd, NET_SET, &setting) < 0 ? fail(word[0]) : 0;
}

int main(int argc, char **argv)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0)
        return fail("the network");
    return argc > 2 ? set(fd, argc - 1, argv + 1) : show_all(fd, argv[1]);
}
