/* Words that are patterns: of make, with a '%', and of the shell, which name files. */

#include <dirent.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tern/command.h>
#include "make.h"

int pattern_match(const char *pattern, const char *word, size_t length, struct stem *stem)
{
    const char *percent = strchr(pattern, '%');
    if (!percent)
        return strlen(pattern) == length && memcmp(pattern, word, length) == 0;
    size_t before = percent - pattern, after = strlen(percent + 1);
    if (length < before + after || memcmp(pattern, word, before) != 0 ||
        memcmp(percent + 1, word + length - after, after) != 0)
        return 0;
    *stem = (struct stem){word + before, length - before - after};
    return 1;
}

void pattern_fill(struct text *to, const char *pattern, size_t length, const struct stem *stem)
{
    const char *percent = memchr(pattern, '%', length);
    if (!percent) {
        add(to, pattern, length);
        return;
    }
    add(to, pattern, percent - pattern);
    add(to, stem->at, stem->length);
    add(to, percent + 1, length - (percent + 1 - pattern));
}

void words_replace(struct text *to, const char *words, const char *pattern, const char *with)
{
    const char *word;
    size_t length;
    int has_stem = strchr(pattern, '%') != NULL;
    while ((word = next_word(&words, &length))) {
        struct stem stem = {0};
        int matches = pattern_match(pattern, word, length, &stem);
        add_word(to, "", 0);
        if (!matches)
            add(to, word, length);
        else if (has_stem)
            pattern_fill(to, with, strlen(with), &stem);
        else
            add_string(to, with);
    }
}

size_t directory_length(const char *word, size_t length)
{
    while (length && word[length - 1] != '/')
        length--;
    return length;
}

int has_glob(const char *word, size_t length)
{
    return memchr(word, '*', length) || memchr(word, '?', length) || memchr(word, '[', length);
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in the directory that match, sorted. Returns their number. */
static size_t matching(const char *directory, const char *pattern, char ***names)
{
    DIR *open = opendir(*directory ? directory : ".");
    struct dirent *entry;
    size_t count = 0, room = 0;
    *names = NULL;
    while (open && (entry = readdir(open))) {
        if ((entry->d_name[0] == '.' && pattern[0] != '.') || fnmatch(pattern, entry->d_name, 0) != 0)
            continue;
        if (count == room)
            *names = need(*names, (room = 2 * room + 16) * sizeof **names);
        (*names)[count++] = copy(entry->d_name, strlen(entry->d_name));
    }
    if (open)
        closedir(open);
    if (count)
        qsort(*names, count, sizeof **names, compare);
    return count;
}

/* Adds what matches `pattern` in the directory, whose name ends with a slash or is empty. */
static void glob_below(struct text *to, const char *directory, const char *pattern)
{
    struct stat status;
    const char *slash = strchr(pattern, '/');
    size_t length = slash ? (size_t)(slash - pattern) : strlen(pattern), count = 1;
    char *part = copy(pattern, length), **names = NULL;
    if (has_glob(part, length)) {
        count = matching(directory, part, &names);
    } else {
        names = need(NULL, sizeof *names);
        names[0] = copy(part, length);
    }
    for (size_t i = 0; i < count; i++) {
        struct text path = {0};
        add_string(&path, directory);
        add_string(&path, names[i]);
        if (slash) {
            add(&path, "/", 1);
            glob_below(to, path.bytes, slash + 1);
        } else if (lstat(*finish(&path) ? path.bytes : ".", &status) == 0) {
            add_word(to, path.bytes, path.length);
        }
        free(path.bytes);
        free(names[i]);
    }
    free(names);
    free(part);
}

void words_glob(struct text *to, const char *pattern)
{
    glob_below(to, "", pattern);
}
