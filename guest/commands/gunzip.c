/* gunzip [-cfk] [FILE.gz...]: expands files, which lose their suffix; with -c, or without files, it writes to
   standard output. -f replaces files that are there, -k keeps the compressed ones. Called zcat, it is
   gunzip -c. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tern/command.h>
#include <tern/gzip.h>
#include <unistd.h>
#include <utime.h>

static int to_output, force, keep;
static const char *called;

static int complain(const char *path, const char *text)
{
    fflush(stdout);
    fprintf(stderr, "%s: %s: %s\n", called, path, text);
    return 1;
}

static int take(void *context, const void *bytes, size_t count)
{
    return fwrite(bytes, 1, count, context) != count;
}

/* The name without .gz, or with .tar instead of .tgz; NULL if it has neither. */
static char *without_suffix(const char *path)
{
    size_t length = strlen(path);
    const char *suffix = length > 3 ? path + length - 3 : "";
    int is_gz = strcmp(suffix, ".gz") == 0;
    if (!is_gz && (length <= 4 || strcmp(path + length - 4, ".tgz") != 0))
        return NULL;
    char *name = need(NULL, length + 1);
    strcpy(name, path);
    strcpy(name + length - (is_gz ? 3 : 2), is_gz ? "" : "ar");
    return name;
}

/* Expands into a new file, which is removed again if that fails. */
static int expand_into(FILE *from, const char *path, const char *name, const struct stat *status)
{
    if (force)
        unlink(name);
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, status->st_mode & 0777);
    FILE *to = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!to)
        return complain(name, errno == EEXIST ? "it is there already (-f replaces it)" : strerror(errno));
    const char *wrong = gzip_expand(from, take, to);
    if (fclose(to) && !wrong)
        wrong = "the output cannot be written";
    if (wrong) {
        unlink(name);
        return complain(path, wrong);
    }
    struct utimbuf times = {status->st_atime, status->st_mtime};
    utime(name, &times);
    return !keep && unlink(path) ? complain(path, strerror(errno)) : 0;
}

static int expand(const char *path)
{
    struct stat status;
    FILE *from = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    int failed = 0;
    if (!from || fstat(fileno(from), &status))
        return complain(path, strerror(errno));
    if (to_output || from == stdin) {
        const char *wrong = gzip_expand(from, take, stdout);
        if (fflush(stdout) && !wrong)
            wrong = "the output cannot be written";
        failed = wrong ? complain(from == stdin ? "stdin" : path, wrong) : 0;
    } else {
        char *name = without_suffix(path);
        failed = name ? expand_into(from, path, name, &status) : complain(path, "unknown suffix -- ignored");
        free(name);
    }
    if (from != stdin)
        fclose(from);
    return failed;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    int option, failed = 0;
    called = slash ? slash + 1 : argv[0];
    to_output = strcmp(called, "zcat") == 0;
    while ((option = getopt(argc, argv, "cfk")) != -1) {
        to_output |= option == 'c';
        force |= option == 'f';
        keep |= option == 'k';
        if (option == '?')
            return usage("gunzip [-cfk] [FILE.gz...]");
    }
    if (optind == argc)
        failed = expand("-");
    for (int i = optind; i < argc; i++)
        failed |= expand(argv[i]);
    return failed;
}
