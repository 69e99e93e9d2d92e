/* Texts and words. */

#include <ctype.h>
#include <string.h>
#include <tern/command.h>
#include "make.h"

void add(struct text *text, const char *bytes, size_t length)
{
    if (text->length + length + 1 > text->room)
        text->bytes = need(text->bytes, text->room = 2 * (text->length + length) + 32);
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
}

void add_string(struct text *text, const char *string)
{
    add(text, string, strlen(string));
}

void add_word(struct text *text, const char *word, size_t length)
{
    if (text->length)
        add(text, " ", 1);
    add(text, word, length);
}

char *finish(struct text *text)
{
    add(text, "", 0);
    return text->bytes;
}

char *copy(const char *bytes, size_t length)
{
    struct text text = {0};
    add(&text, bytes, length);
    return text.bytes;
}

const char *next_word(const char **at, size_t *length)
{
    const char *s = *at, *word;
    while (isspace((unsigned char)*s))
        s++;
    for (word = s; *s && !isspace((unsigned char)*s); s++)
        ;
    *at = s;
    *length = s - word;
    return s == word ? NULL : word;
}

char *strip(char *string)
{
    size_t length = strlen(string);
    while (length && isspace((unsigned char)string[length - 1]))
        string[--length] = 0;
    while (isspace((unsigned char)*string))
        string++;
    return string;
}
