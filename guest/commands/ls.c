/* ls [-aldiR1] [FILE...]: lists files. */

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 1024

static int show_all, show_long, only_names, show_inodes, recursive, failed;

static int complain(const char *path)
{
    fflush(stdout);
    fprintf(stderr, "ls: %s: %s\n", path, strerror(errno));
    return failed = 1;
}

static void mode_text(mode_t mode, char *text)
{
    static const char types[] = "?pc?d?b?-?l?s???";
    text[0] = types[mode >> 12 & 15];
    for (int i = 0; i < 9; i++)
        text[i + 1] = mode >> (8 - i) & 1 ? "rwx"[i % 3] : '-';
    if (mode & S_ISVTX)
        text[9] = 't';
    text[10] = 0;
}

static void show(const char *path, const char *name)
{
    struct stat status;
    char mode[11], date[32], target[PATH_BYTES];
    if (lstat(path, &status)) {
        complain(path);
        return;
    }
    if (show_inodes)
        printf("%6u ", (unsigned)status.st_ino);
    if (!show_long) {
        puts(name);
        return;
    }
    time_t modified = status.st_mtime;
    mode_text(status.st_mode, mode);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime(&modified));
    printf("%s %3u ", mode, (unsigned)status.st_nlink);
    if (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode))
        printf("%5u,%3u ", (unsigned)(status.st_rdev >> 8), (unsigned)(status.st_rdev & 255));
    else
        printf("%9u ", (unsigned)status.st_size);
    printf("%s %s", date, name);
    if (S_ISLNK(status.st_mode)) {
        ssize_t length = readlink(path, target, sizeof target);
        if (length >= 0)
            printf(" -> %.*s", (int)length, target);
    }
    putchar('\n');
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a directory, sorted; NULL behind the last. */
static char **read_names(const char *path)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    size_t count = 0, size = 0;
    char **names = NULL;
    if (!directory) {
        complain(path);
        return NULL;
    }
    while ((errno = 0, entry = readdir(directory))) {
        if (entry->d_name[0] == '.' && !show_all)
            continue;
        if (count + 1 >= size) {
            size = size ? 2 * size : 64;
            names = realloc(names, size * sizeof *names);
        }
        if (!names || !(names[count++] = strdup(entry->d_name))) {
            fprintf(stderr, "ls: out of memory\n");
            exit(1);
        }
    }
    /* What could be read is listed all the same. */
    if (errno)
        complain(path);
    closedir(directory);
    if (!names)
        names = malloc(sizeof *names);
    else
        qsort(names, count, sizeof *names, compare);
    if (names)
        names[count] = NULL;
    return names;
}

/* As many columns as fit, on terminals. */
static void show_columns(char **names)
{
    size_t longest = 0, count = 0;
    for (; names[count]; count++)
        if (strlen(names[count]) > longest)
            longest = strlen(names[count]);
    size_t columns = 80 / (longest + 2) ? 80 / (longest + 2) : 1, rows = (count + columns - 1) / columns;
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = row; i < count; i += rows)
            printf("%-*s", i + rows < count ? (int)longest + 2 : 0, names[i]);
        putchar('\n');
    }
}

static void show_directory(const char *path)
{
    char **names = read_names(path), inner[PATH_BYTES];
    if (!names)
        return;
    if (recursive)
        printf("%s:\n", path);
    if (!show_long && !only_names && !show_inodes)
        show_columns(names);
    for (char **name = names; *name; name++) {
        snprintf(inner, sizeof inner, "%s/%s", strcmp(path, "/") ? path : "", *name);
        if (show_long || only_names || show_inodes)
            show(inner, *name);
    }
    for (char **name = names; *name; name++) {
        struct stat status;
        snprintf(inner, sizeof inner, "%s/%s", strcmp(path, "/") ? path : "", *name);
        if (recursive && strcmp(*name, ".") && strcmp(*name, "..") && lstat(inner, &status) == 0 &&
            S_ISDIR(status.st_mode)) {
            putchar('\n');
            show_directory(inner);
        }
        free(*name);
    }
    free(names);
}

int main(int argc, char **argv)
{
    int option, self = 0;
    while ((option = getopt(argc, argv, "aldiR1")) != -1) {
        show_all |= option == 'a';
        show_long |= option == 'l';
        self |= option == 'd';
        show_inodes |= option == 'i';
        recursive |= option == 'R';
        only_names |= option == '1';
        if (option == '?')
            return 2;
    }
    only_names |= !isatty(1);
    if (optind == argc)
        self ? show(".", ".") : show_directory(".");
    for (int i = optind; i < argc; i++) {
        struct stat status;
        if ((show_long ? lstat : stat)(argv[i], &status) && lstat(argv[i], &status)) {
            complain(argv[i]);
        } else if (S_ISDIR(status.st_mode) && !self) {
            if (argc - optind > 1 && !recursive)
                printf("%s%s:\n", i > optind ? "\n" : "", argv[i]);
            show_directory(argv[i]);
        } else {
            show(argv[i], argv[i]);
        }
    }
    return failed;
}
