/* dmesg: the kernel's log. */

#include <stdio.h>
#include <tern/lib.h>

#define LOG_BYTES 0x10000

int main(void)
{
    static char text[LOG_BYTES];
    int bytes = sys_getinfo(INFO_LOG, text, sizeof text);
    if (bytes < 0) {
        fprintf(stderr, "dmesg: the kernel does not give its log\n");
        return 1;
    }
    return fwrite(text, 1, bytes, stdout) != (size_t)bytes;
}
