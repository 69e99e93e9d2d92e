/* What commands whose operands are files have in common. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>

int usage(const char *text)
{
    fprintf(stderr, "usage: %s\n", text);
    return 2;
}

FILE *open_operand(const char *path)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (!file)
        perror(path);
    return file;
}

int each_operand(int count, char *const paths[], void (*take)(FILE *file, const char *name))
{
    int failed = 0;
    if (count <= 0)
        take(stdin, "-");
    for (int i = 0; i < count; i++) {
        FILE *file = open_operand(paths[i]);
        if (!file) {
            failed = 1;
            continue;
        }
        take(file, paths[i]);
        if (file != stdin)
            fclose(file);
    }
    return failed;
}

ssize_t read_line(char **line, size_t *room, FILE *file)
{
    ssize_t length = getline(line, room, file);
    if (length > 0 && (*line)[length - 1] == '\n')
        (*line)[--length] = 0;
    return length;
}

struct dirent *next_entry(DIR *directory, int *error)
{
    struct dirent *entry;
    errno = 0;
    do
        entry = readdir(directory);
    while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    *error = entry ? 0 : errno;
    return entry;
}

void *need(void *memory, size_t bytes)
{
    void *result = realloc(memory, bytes);
    if (!result) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return result;
}
