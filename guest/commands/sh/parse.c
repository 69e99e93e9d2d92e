/* The grammar (POSIX, Shell & Utilities, 2.10): recursive descent over the text. A text that ends within a
   command is incomplete: then more is read, and it is parsed anew. */

#include <ctype.h>
#include <setjmp.h>
#include <string.h>
#include "lex.h"
#include "sh.h"

static struct command *new_command(enum command_kind kind, struct command *first, struct command *second)
{
    struct command *command = allocate(sizeof *command);
    command->kind = kind;
    command->first = first;
    command->second = second;
    return command;
}

static struct command *parse_list(void);
static struct command *parse_and_or(void);

/* Takes the quotes off a here-document's word. Returns whether there were some. */
static int unquote(char *word)
{
    int quoted = 0;
    char *to = word;
    for (; *word; word++) {
        if (*word == '\'' || *word == '"' || *word == '\\')
            quoted = 1;
        else
            *to++ = *word;
    }
    *to = 0;
    return quoted;
}

static void add_here(struct redirection *redirection, char *word, int strip)
{
    struct here *here = allocate(sizeof *here), **last = &heres;
    redirection->literal = unquote(word);
    here->redirection = redirection;
    here->end = word;
    here->strip = strip;
    while (*last)
        last = &(*last)->next;
    *last = here;
}

/* A redirection, if one comes next. */
static int take_redirection(struct command *command)
{
    static const struct {
        const char *operator;
        enum redirection_kind kind;
        int fd;
    } operators[] = {{"<<-", HERE, 0}, {"<<", HERE, 0}, {"<&", DUP_FROM, 0}, {"<>", BOTH, 0}, {"<", FROM, 0},
                     {">>", APPEND_TO, 1}, {">&", DUP_TO, 1}, {">|", TO, 1}, {">", TO, 1}};
    skip_blanks();
    size_t start = at;
    int fd = -1;
    if (isdigit((unsigned char)text[at]) && (text[at + 1] == '<' || text[at + 1] == '>'))
        fd = text[at++] - '0';
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!take_operator(operators[i].operator))
            continue;
        struct redirection *redirection = allocate(sizeof *redirection), **last = &command->redirections;
        redirection->kind = operators[i].kind;
        redirection->fd = fd >= 0 ? fd : operators[i].fd;
        char *word = read_word();
        if (!word)
            wrong("a redirection needs a word");
        redirection->word = word;
        if (redirection->kind == HERE)
            add_here(redirection, word, i == 0);
        while (*last)
            last = &(*last)->next;
        *last = redirection;
        return 1;
    }
    at = start;
    return 0;
}

static void add_word(struct word **list, char *word)
{
    while (*list)
        list = &(*list)->next;
    *list = allocate(sizeof **list);
    (*list)->text = word;
}

static int is_assignment(const char *word)
{
    const char *equals = strchr(word, '=');
    return equals && is_name(word, equals - word);
}

static struct command *parse_simple(void)
{
    struct command *command = new_command(SIMPLE, NULL, NULL);
    for (;;) {
        if (take_redirection(command))
            continue;
        char *word = read_word();
        if (!word)
            break;
        add_word(!command->words && is_assignment(word) ? &command->assignments : &command->words, word);
        /* NAME () is a function. */
        if (command->words && !command->words->next && !command->assignments && !command->redirections &&
            is_name(word, strlen(word)) && take_operator("(")) {
            if (!take_operator(")"))
                wrong("(");
            skip_lines();
            command->kind = FUNCTION;
            command->name = word;
            command->first = parse_and_or();
            return command;
        }
    }
    if (!command->words && !command->assignments && !command->redirections) {
        if (!text[at])
            incomplete();
        wrong("a command is missing");
    }
    return command;
}

static struct command *parse_if(void)
{
    struct command *command = new_command(IF, parse_list(), NULL);
    need_word("then");
    command->second = parse_list();
    skip_lines();
    if (take_word("elif")) {
        command->third = parse_if();
        return command;
    }
    if (take_word("else"))
        command->third = parse_list();
    need_word("fi");
    return command;
}

/* do LIST done */
static struct command *parse_body(void)
{
    need_word("do");
    struct command *body = parse_list();
    need_word("done");
    return body;
}

static struct command *parse_loop(enum command_kind kind)
{
    struct command *command = new_command(kind, parse_list(), NULL);
    command->second = parse_body();
    return command;
}

static struct command *parse_for(void)
{
    struct command *command = new_command(FOR, NULL, NULL);
    command->name = read_word();
    if (!command->name || !is_name(command->name, strlen(command->name)))
        wrong("for");
    skip_lines();
    if (take_word("in")) {
        char *word;
        command->has_list = 1;
        while ((word = read_word()))
            add_word(&command->words, word);
    }
    take_operator(";");
    command->second = parse_body();
    return command;
}

static struct command *parse_case(void)
{
    struct command *command = new_command(CASE, NULL, NULL);
    struct arm **last = &command->arms;
    char *word = read_word();
    if (!word)
        wrong("case");
    add_word(&command->words, word);
    need_word("in");
    for (;;) {
        skip_lines();
        if (take_word("esac"))
            return command;
        struct arm *arm = *last = allocate(sizeof **last);
        last = &arm->next;
        take_operator("(");
        do {
            if (!(word = read_word()))
                text[at] ? wrong("case") : incomplete();
            add_word(&arm->patterns, word);
        } while (take_operator("|"));
        if (!take_operator(")"))
            text[at] ? wrong("case") : incomplete();
        skip_lines();
        if (strncmp(text + at, ";;", 2) && strncmp(text + at, "esac", 4))
            arm->body = parse_list();
        skip_lines();
        if (!take_operator(";;")) {
            need_word("esac");
            return command;
        }
    }
}

static struct command *parse_compound(void)
{
    struct command *command;
    if (take_word("if"))
        command = parse_if();
    else if (take_word("while"))
        command = parse_loop(WHILE);
    else if (take_word("until"))
        command = parse_loop(UNTIL);
    else if (take_word("for"))
        command = parse_for();
    else if (take_word("case"))
        command = parse_case();
    else if (take_word("{")) {
        command = new_command(GROUP, parse_list(), NULL);
        need_word("}");
    } else if (take_operator("(")) {
        command = new_command(SUBSHELL, parse_list(), NULL);
        skip_lines();
        if (!take_operator(")"))
            text[at] ? wrong("(") : incomplete();
    } else {
        return parse_simple();
    }
    while (take_redirection(command))
        ;
    return command;
}

static struct command *parse_pipeline(void)
{
    int negated = 0;
    while (take_word("!"))
        negated = !negated;
    struct command *first = parse_compound(), *last = first;
    skip_blanks();
    while (text[at] == '|' && text[at + 1] != '|') {
        at++;
        skip_lines();
        last = last->next = parse_compound();
        skip_blanks();
    }
    if (last == first && !negated)
        return first;
    struct command *command = new_command(PIPELINE, first, NULL);
    command->negated = negated;
    return command;
}

static struct command *parse_and_or(void)
{
    struct command *command = parse_pipeline();
    for (;;) {
        int and = take_operator("&&");
        if (!and && !take_operator("||"))
            return command;
        skip_lines();
        command = new_command(and ? AND : OR, command, parse_pipeline());
    }
}

/* Whether the list ends here: at a word or operator that belongs to what is around it. */
static int list_ends(void)
{
    static const char *const ends[] = {"then", "else", "elif", "fi", "do", "done", "esac", "}"};
    size_t start = at;
    if (!text[at] || text[at] == ')' || strncmp(text + at, ";;", 2) == 0)
        return 1;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        int ends_here = take_word(ends[i]);
        at = start;
        if (ends_here)
            return 1;
    }
    return 0;
}

static struct command *parse_list(void)
{
    struct command *list = NULL;
    skip_lines();
    do {
        struct command *command = parse_and_or();
        skip_blanks();
        if (text[at] == '&' && text[at + 1] != '&') {
            at++;
            command = new_command(BACKGROUND, command, NULL);
        } else if (text[at] == ';' && text[at + 1] != ';') {
            at++;
        } else if (text[at] && text[at] != '\n' && !list_ends()) {
            wrong("between two commands");
        }
        list = list ? new_command(SEQUENCE, list, command) : command;
        skip_lines();
    } while (!list_ends());
    return list;
}

/* One line's commands. */
static struct command *parse_line(void)
{
    struct command *line = NULL;
    for (;;) {
        struct command *command = parse_and_or();
        skip_blanks();
        if (text[at] == '&' && text[at + 1] != '&') {
            at++;
            command = new_command(BACKGROUND, command, NULL);
        } else if (text[at] == ';' && text[at + 1] != ';') {
            at++;
        } else if (text[at] && text[at] != '\n') {
            wrong("at the end of a command");
        }
        line = line ? new_command(SEQUENCE, line, command) : command;
        skip_blanks();
        if (text[at] == '\n') {
            new_line();
            return line;
        }
        if (!text[at]) {
            if (heres)
                incomplete();
            return line;
        }
    }
}

enum parsed parse(const char *whole, size_t *where, struct command **command)
{
    text = whole;
    at = *where;
    heres = NULL;
    int result = setjmp(escape);
    if (result)
        return result;
    skip_lines();
    *where = at;
    if (!text[at])
        return PARSED_NOTHING;
    *command = parse_line();
    *where = at;
    return PARSED;
}
