/* Copies of commands that last: bodies of functions. */

#include <stdlib.h>
#include <string.h>
#include "sh.h"

static void *keep(const void *from, size_t bytes)
{
    void *copy = malloc(bytes);
    if (!copy)
        exit(2);
    return memcpy(copy, from, bytes);
}

static char *keep_text(const char *text)
{
    return text ? keep(text, strlen(text) + 1) : NULL;
}

static struct word *keep_words(const struct word *words)
{
    if (!words)
        return NULL;
    struct word *copy = keep(words, sizeof *words);
    copy->text = keep_text(words->text);
    copy->next = keep_words(words->next);
    return copy;
}

static struct redirection *keep_redirections(const struct redirection *r)
{
    if (!r)
        return NULL;
    struct redirection *copy = keep(r, sizeof *r);
    copy->word = keep_text(r->word);
    copy->next = keep_redirections(r->next);
    return copy;
}

static struct arm *keep_arms(const struct arm *arm)
{
    if (!arm)
        return NULL;
    struct arm *copy = keep(arm, sizeof *arm);
    copy->patterns = keep_words(arm->patterns);
    copy->body = keep_command(arm->body);
    copy->next = keep_arms(arm->next);
    return copy;
}

struct command *keep_command(const struct command *command)
{
    if (!command)
        return NULL;
    struct command *copy = keep(command, sizeof *command);
    copy->first = keep_command(command->first);
    copy->second = keep_command(command->second);
    copy->third = keep_command(command->third);
    copy->next = keep_command(command->next);
    copy->words = keep_words(command->words);
    copy->assignments = keep_words(command->assignments);
    copy->redirections = keep_redirections(command->redirections);
    copy->arms = keep_arms(command->arms);
    copy->name = keep_text(command->name);
    return copy;
}
