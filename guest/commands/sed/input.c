/* sed's input: it is one line ahead, to know which one is the last. */

#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include "sed.h"

static int file_count;
static char **file_paths;
static FILE *file;
static char *ahead;
static size_t ahead_room;
static ssize_t ahead_length;
static int failed, without_newline;
unsigned long line_number;

void text_add(struct text *text, const char *bytes, size_t count)
{
    if (text->used + count + 1 > text->room) {
        text->room = 2 * (text->used + count) + 64;
        text->bytes = need(text->bytes, text->room);
    }
    memmove(text->bytes + text->used, bytes, count);
    text->used += count;
    text->bytes[text->used] = 0;
}

void text_clear(struct text *text)
{
    text->used = 0;
    text_add(text, "", 0);
}

static void look_ahead(void)
{
    ahead_length = -1;
    for (;;) {
        if (file && (ahead_length = getline(&ahead, &ahead_room, file)) >= 0)
            return;
        if (file && file != stdin)
            fclose(file);
        if (!file_count)
            break;
        file_count--;
        file = open_operand(*file_paths++);
        failed |= !file;
    }
    file = NULL;
}

void input_files(int count, char **paths)
{
    static char *standard_input[] = {"-"};
    file_count = count ? count : 1;
    file_paths = count ? paths : standard_input;
    line_number = 0;
    look_ahead();
}

int input_line(struct text *line, int append)
{
    if (ahead_length < 0)
        return 0;
    without_newline = ahead[ahead_length - 1] != '\n';
    if (!append)
        text_clear(line);
    else
        text_add(line, "\n", 1);
    text_add(line, ahead, ahead_length - !without_newline);
    line_number++;
    look_ahead();
    return 1;
}

int input_is_last(void)
{
    return ahead_length < 0;
}

/* If another follows, the newline is needed between them. */
int input_ended_without_newline(void)
{
    return without_newline && ahead_length < 0;
}

int input_failed(void)
{
    return failed;
}
