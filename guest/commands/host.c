/* host NAME...: shows the addresses of hosts. */

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int failed = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: host NAME...\n");
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        struct hostent *found = gethostbyname(argv[i]);
        if (!found) {
            fprintf(stderr, "host: %s: %s\n", argv[i], hstrerror(h_errno));
            failed = 1;
            continue;
        }
        for (char **address = found->h_addr_list; *address; address++)
            printf("%s %s\n", found->h_name, inet_ntoa(*(struct in_addr *)*address));
    }
    return failed;
}
