/* fetch [-o FILE] http://HOST[:PORT][/PATH]: gets a file by HTTP/1.0 (RFC 1945), to standard output or
   FILE. */

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <tern/files.h>
#include <unistd.h>

#define HEAD_MAX 16384u

static char buffer[65536];
static char host[256], port[8] = "80";
static const char *path;

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "fetch: %s: %s\n", what, why);
    return 1;
}

static int parse(const char *url)
{
    if (strncmp(url, "http://", 7) != 0)
        return 0;
    url += 7;
    size_t length = strcspn(url, ":/");
    if (length == 0 || length >= sizeof host)
        return 0;
    memcpy(host, url, length);
    url += length;
    if (*url == ':') {
        length = strcspn(++url, "/");
        if (length == 0 || length >= sizeof port)
            return 0;
        memcpy(port, url, length);
        port[length] = 0;
        url += length;
    }
    path = *url ? url : "/";
    /* A line's end in it would be another line of the request. */
    return strpbrk(path, " \r\n") == NULL;
}

static int dial(void)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(host, port, &hints, &found), fd = -1;
    if (error) {
        fail(host, gai_strerror(error));
        return -1;
    }
    for (struct addrinfo *to = found; to; to = to->ai_next) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0)
            break;
        fail(host, strerror(errno));
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

/* Reads until the head is there. Returns the number of bytes read, and where the body begins; 0 if there is
   no end. */
static size_t read_head(int fd, size_t *body)
{
    size_t used = 0;
    while (used < HEAD_MAX) {
        ssize_t got = read(fd, buffer + used, HEAD_MAX - used);
        if (got <= 0)
            return 0;
        used += got;
        buffer[used] = 0;
        char *end = strstr(buffer, "\r\n\r\n");
        if (end) {
            *body = end + 4 - buffer;
            end[2] = 0;
            return used;
        }
    }
    return 0;
}

/* The length that the head promises, or -1. */
static long long content_length(const char *head)
{
    for (const char *line = head; line; line = strstr(line, "\r\n")) {
        line += *line == '\r' ? 2 : 0;
        if (strncasecmp(line, "Content-Length:", 15) == 0)
            return strtoll(line + 15, NULL, 10);
        if (*line == 0)
            break;
    }
    return -1;
}

static int get(int fd, const char *url, const char *file)
{
    size_t body, used = read_head(fd, &body);
    if (used == 0 || strncmp(buffer, "HTTP/1.", 7) != 0)
        return fail(url, "no answer by HTTP");
    long long length = content_length(buffer), got = 0;
    int status = atoi(buffer + strcspn(buffer, " "));
    if (status != 200) {
        buffer[strcspn(buffer, "\r")] = 0;
        return fail(url, buffer);
    }
    int out = file ? open(file, O_WRONLY | O_CREAT | O_TRUNC, 0666) : 1;
    if (out < 0)
        return fail(file, strerror(errno));
    ssize_t part = used - body;
    char *from = buffer + body;
    do {
        if (length >= 0 && part > length - got)
            part = length - got;
        if (write_all(out, from, part) < 0)
            return fail(file ? file : "standard output", strerror(errno));
        got += part;
        from = buffer;
    } while (got != length && (part = read(fd, buffer, sizeof buffer)) > 0);
    if (part < 0)
        return fail(url, strerror(errno));
    return length >= 0 && got < length ? fail(url, "the connection ended early") : 0;
}

int main(int argc, char **argv)
{
    const char *file = NULL;
    int option = getopt(argc, argv, "o:");
    if (option == 'o')
        file = optarg;
    if ((option != -1 && option != 'o') || optind != argc - 1 || !parse(argv[optind])) {
        fprintf(stderr, "usage: fetch [-o FILE] http://HOST[:PORT][/PATH]\n");
        return 2;
    }
    int fd = dial();
    if (fd < 0)
        return 1;
    int bytes = snprintf(buffer, sizeof buffer, "GET %s HTTP/1.0\r\nHost: %s\r\nConnection: close\r\n\r\n",
                         path, host);
    if ((size_t)bytes >= sizeof buffer || write_all(fd, buffer, bytes) < 0)
        return fail(host, strerror(errno));
    return get(fd, argv[optind], file);
}
