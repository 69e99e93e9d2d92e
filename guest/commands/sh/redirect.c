/* Redirections. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "sh.h"

#define SAVED_FROM 10          /* descriptors from here on keep what redirections have replaced */

static int open_redirection(const struct redirection *r)
{
    switch (r->kind) {
    case FROM:
        return open(expand_text(r->word), O_RDONLY);
    case TO:
        return open(expand_text(r->word), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    case APPEND_TO:
        return open(expand_text(r->word), O_WRONLY | O_CREAT | O_APPEND, 0666);
    case BOTH:
        return open(expand_text(r->word), O_RDWR | O_CREAT, 0666);
    default:
        return -1;
    }
}

/* A here-document goes through a file that has lost its name: a pipe would hold only a part of it. */
static int open_here(const struct redirection *r)
{
    char name[40];
    const char *text = r->literal ? r->word : expand_here(r->word);
    static int number;
    snprintf(name, sizeof name, "/tmp/sh.%d.%d", (int)getpid(), number++);
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return -1;
    unlink(name);
    if (write(fd, text, strlen(text)) < 0 || lseek(fd, 0, SEEK_SET) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int redirect(const struct redirection *r)
{
    int fd;
    if (r->kind == DUP_FROM || r->kind == DUP_TO) {
        char *word = expand_text(r->word);
        if (strcmp(word, "-") == 0)
            return close(r->fd), 0;
        if (word[0] < '0' || word[0] > '9' || dup2(atoi(word), r->fd) < 0) {
            complain(word, "bad descriptor");
            return -1;
        }
        return 0;
    }
    fd = r->kind == HERE ? open_here(r) : open_redirection(r);
    if (fd < 0) {
        complain(r->kind == HERE ? "here-document" : expand_text(r->word), strerror(errno));
        return -1;
    }
    if (fd != r->fd) {
        dup2(fd, r->fd);
        close(fd);
    }
    return 0;
}

/* With `saved`, what was there is kept, so that it can be put back. */
int redirect_all(const struct redirection *r, struct saved *saved, int *count)
{
    fflush(stdout);
    for (; r; r = r->next) {
        if (saved && *count < SAVED_MAX) {
            saved[*count].fd = r->fd;
            saved[*count].copy = fcntl(r->fd, F_DUPFD, SAVED_FROM);
            if (saved[*count].copy >= 0)
                fcntl(saved[*count].copy, F_SETFD, FD_CLOEXEC);
            ++*count;
        }
        if (redirect(r))
            return -1;
    }
    return 0;
}

void put_back(struct saved *saved, int count)
{
    fflush(stdout);
    while (count--) {
        if (saved[count].copy < 0) {
            close(saved[count].fd);
            continue;
        }
        dup2(saved[count].copy, saved[count].fd);
        close(saved[count].copy);
    }
}
