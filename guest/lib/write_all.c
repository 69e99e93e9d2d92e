#include <errno.h>
#include <tern/files.h>
#include <unistd.h>

int write_all(int fd, const void *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t part = write(fd, (const char *)from + done, bytes - done);
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            return -1;
        done += part;
    }
    return 0;
}
