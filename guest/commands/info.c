/* info: shows tables of the kernel, as the information server gives them. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/is.h>
#include <tern/lib.h>

#define TEXT_BYTES 0x8000u

int main(int argc, char **argv)
{
    static const char *const names[] = {[IS_PROCESSES] = "processes", [IS_MESSAGES] = "messages",
                                        [IS_RIGHTS] = "rights", [IS_MEMORY] = "memory", [IS_LOG] = "log"};
    static char text[TEXT_BYTES];
    const char *wanted = argc == 2 ? argv[1] : "";
    struct message m = {.w = {0, (uint32_t)text, sizeof text}};
    for (uint32_t i = IS_PROCESSES; i <= IS_LOG; i++)
        if (strcmp(wanted, names[i]) == 0)
            m.w[0] = i;
    if (m.w[0] == 0) {
        fprintf(stderr, "usage: info processes|messages|rights|memory|log\n");
        return 2;
    }
    int result = call(SERVICE(IS), IS_DUMP, &m);
    if (result < 0) {
        fprintf(stderr, "info: %s\n", strerror(-result));
        return 1;
    }
    fwrite(text, 1, m.w[0] < sizeof text ? m.w[0] : sizeof text, stdout);
    return 0;
}
