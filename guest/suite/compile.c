/*
 * Work as it is in life, in small: source files are compiled, each by a process of its own, and linked.
 *
 * The paper recompiles MINIX, for which a guest would need a compiler and the sources. Here the source is a
 * list of assignments of expressions in C's syntax, and the compiler makes code of it for a machine with a
 * stack.
 */
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "suite.h"

#define FILE_BYTES 65536
#define SYMBOLS 512
#define NAME_BYTES 16

struct compiler {
    const char *at; /* in the source */
    char names[SYMBOLS][NAME_BYTES];
    uint32_t names_known;
    uint8_t code[FILE_BYTES];
    uint32_t code_bytes;
};

/* A file's contents, with a zero at the end; gives their length. */
static size_t read_file(const char *path, char text[FILE_BYTES])
{
    int file = open(path, O_RDONLY);
    if (file < 0)
        fail(path);
    size_t length = 0;
    ssize_t more;
    while ((more = read(file, text + length, FILE_BYTES - 1 - length)) > 0)
        length += more;
    if (more < 0)
        fail(path);
    close(file);
    text[length] = 0;
    return length;
}

static void write_file(const char *path, const void *bytes, size_t length)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, bytes, length) != (ssize_t)length || close(file) != 0)
        fail(path);
}

static void emit(struct compiler *c, uint8_t operation, uint32_t operand)
{
    if (c->code_bytes + 5 > sizeof c->code) {
        fprintf(stderr, "suite: the program is too long\n");
        exit(1);
    }
    c->code[c->code_bytes] = operation;
    memcpy(c->code + c->code_bytes + 1, &operand, sizeof operand);
    c->code_bytes += 5;
}

static void skip_space(struct compiler *c)
{
    while (isspace((unsigned char)*c->at))
        c->at++;
}

static int takes(struct compiler *c, char wanted)
{
    skip_space(c);
    if (*c->at != wanted)
        return 0;
    c->at++;
    return 1;
}

/* The number of the name at this place, which is a new one if it has not been seen. */
static uint32_t symbol(struct compiler *c)
{
    char name[NAME_BYTES] = {0};
    for (size_t i = 0; isalnum((unsigned char)*c->at); c->at++)
        if (i + 1 < sizeof name)
            name[i++] = *c->at;
    for (uint32_t i = 0; i < c->names_known; i++)
        if (strcmp(c->names[i], name) == 0)
            return i;
    if (c->names_known == SYMBOLS) {
        fprintf(stderr, "suite: too many names\n");
        exit(1);
    }
    memcpy(c->names[c->names_known], name, sizeof name);
    return c->names_known++;
}

static void expression(struct compiler *c);

static void primary(struct compiler *c)
{
    if (takes(c, '(')) {
        expression(c);
        if (!takes(c, ')')) {
            fprintf(stderr, "suite: a parenthesis is missing\n");
            exit(1);
        }
    } else if (isdigit((unsigned char)*c->at)) {
        emit(c, '#', strtoul(c->at, (char **)&c->at, 10));
    } else {
        emit(c, '@', symbol(c));
    }
}

static void product(struct compiler *c)
{
    primary(c);
    while (takes(c, '*')) {
        primary(c);
        emit(c, '*', 0);
    }
}

static void expression(struct compiler *c)
{
    product(c);
    for (;;) {
        char operation = takes(c, '+') ? '+' : takes(c, '-') ? '-' : 0;
        if (operation == 0)
            return;
        product(c);
        emit(c, operation, 0);
    }
}

int compile(const char *source, const char *object)
{
    static struct compiler c;
    static char text[FILE_BYTES];
    read_file(source, text);
    c.at = text;
    for (skip_space(&c); *c.at != 0; skip_space(&c)) {
        uint32_t target = symbol(&c);
        if (!takes(&c, '=')) {
            fprintf(stderr, "suite: no assignment in %s\n", source);
            return 1;
        }
        expression(&c);
        if (!takes(&c, ';')) {
            fprintf(stderr, "suite: no semicolon in %s\n", source);
            return 1;
        }
        emit(&c, '!', target);
    }
    write_file(object, c.code, c.code_bytes);
    return 0;
}

int link_objects(const char *program, char *const objects[])
{
    static char text[FILE_BYTES];
    uint32_t sum = 0;
    for (size_t i = 0; objects[i] != NULL; i++) {
        size_t length = read_file(objects[i], text);
        for (size_t at = 0; at < length; at++)
            sum = mix(sum, (uint8_t)text[at]);
    }
    write_file(program, &sum, sizeof sum);
    return 0;
}

/* A source of 100 assignments, which differs with SEED. */
static size_t make_source(char text[FILE_BYTES], uint32_t seed)
{
    size_t length = 0;
    uint32_t x = seed;
    for (int line = 0; line < 100; line++) {
        uint32_t a = x = next_random(x);
        uint32_t b = x = next_random(x);
        length += snprintf(text + length, FILE_BYTES - length, "v%u = (v%u + %u) * (v%u - w%u * %u) + w%u;\n",
                           a >> 25, b >> 26, a & 0xffff, b >> 20 & 63, a >> 20 & 31, b & 0xff, line);
    }
    return length;
}

/* A file name in DIRECTORY. */
#define PATH_BYTES 64
static void name_file(char path[PATH_BYTES], const char *directory, const char *name)
{
    snprintf(path, PATH_BYTES, "%s/%s", directory, name);
}

/* Compiles and links COUNT programs of two files. */
uint32_t blended_compile(uint32_t count, const char *path)
{
    (void)path;
    static char text[FILE_BYTES];
    char directory[] = "/tmp/suite-XXXXXX";
    if (mkdtemp(directory) == NULL)
        fail("mkdtemp");
    char source[PATH_BYTES], first[PATH_BYTES], second[PATH_BYTES], program[PATH_BYTES];
    name_file(source, directory, "source");
    name_file(first, directory, "first");
    name_file(second, directory, "second");
    name_file(program, directory, "program");
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        char *objects[] = {first, second};
        for (uint32_t file = 0; file < 2; file++) {
            write_file(source, text, make_source(text, 2 * i + file));
            char *arguments[] = {COMPILE_COMMAND, source, objects[file], NULL};
            sum = mix(sum, start_self(arguments));
        }
        char *arguments[] = {LINK_COMMAND, program, first, second, NULL};
        sum = mix(sum, start_self(arguments));
        uint32_t linked = 0;
        if (read_file(program, text) == sizeof linked)
            memcpy(&linked, text, sizeof linked);
        sum = mix(sum, linked);
    }
    if (count > 0) {
        unlink(source);
        unlink(first);
        unlink(second);
        unlink(program);
    }
    rmdir(directory);
    return sum;
}
