/* tee [-a] [FILE...]: copies standard input to standard output and to files. */

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILES 16

int main(int argc, char **argv)
{
    static char buffer[4096];
    int append = argc > 1 && strcmp(argv[1], "-a") == 0, fds[FILES], count = 0, failed = 0;
    ssize_t got;
    fds[count++] = 1;
    for (int i = 1 + append; i < argc && count < FILES; i++) {
        fds[count] = open(argv[i], O_WRONLY | O_CREAT | (append ? O_APPEND : O_TRUNC), 0666);
        if (fds[count] >= 0)
            count++;
        else
            perror(argv[i]), failed = 1;
    }
    while ((got = read(0, buffer, sizeof buffer)) > 0)
        for (int i = 0; i < count; i++)
            failed |= write(fds[i], buffer, got) != got;
    return failed;
}
