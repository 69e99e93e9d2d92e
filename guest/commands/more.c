/* more [FILE...]: shows texts by screens. Space shows the next screen, Enter the next line, q ends. If
   standard output is no terminal, this copies. */

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <tern/command.h>
#include <tern/keys.h>
#include <unistd.h>

static struct terminal before;
static int asks, rows = 24, columns = 80, rows_left, column;

static void __attribute__((noreturn)) end(int status)
{
    fflush(stdout);
    if (asks)
        terminal_set(0, &before);
    exit(status);
}

static void ask(void)
{
    int key;
    fputs("\033[7m--More--\033[m", stdout);
    fflush(stdout);
    do
        key = read_key();
    while (key != ' ' && key != '\r' && key != '\n' && key != 'q' && key != CONTROL('C') && key >= 0 &&
           key != KEY_DOWN && key != KEY_PAGE_DOWN);
    fputs("\r\033[K", stdout);
    if (key == 'q' || key == CONTROL('C') || key < 0)
        end(0);
    rows_left = key == ' ' || key == KEY_PAGE_DOWN ? rows - 1 : 1;
}

static void show(FILE *file, const char *name)
{
    int c;
    (void)name;
    while ((c = getc(file)) != EOF) {
        if (asks && rows_left == 0)
            ask();
        putchar(c);
        column = c == '\n' ? 0 : c == '\t' ? (column / 8 + 1) * 8 : column + 1;
        if (c == '\n' || column >= columns) {
            column = 0;
            rows_left--;
        }
    }
}

/* Keys come from the terminal of standard output if standard input is the text. */
static FILE *take_terminal(void)
{
    struct terminal state;
    FILE *text = NULL;
    if (!isatty(1))
        return NULL;
    if (!isatty(0)) {
        text = fdopen(dup(0), "r");
        dup2(1, 0);
    }
    if (terminal_get(0, &before))
        return text;
    asks = 1;
    state = before;
    state.flags &= ~(TERMINAL_ECHO | TERMINAL_LINES | TERMINAL_SIGNALS);
    terminal_set(0, &state);
    rows = before.rows > 1 ? before.rows : rows;
    columns = before.columns ? before.columns : columns;
    rows_left = rows - 1;
    return text;
}

int main(int argc, char **argv)
{
    if (getopt(argc, argv, "") != -1 || (optind == argc && isatty(0)))
        return usage("more [FILE...]");
    FILE *text = take_terminal();
    if (optind == argc && text)
        show(text, "-");
    else
        end(each_operand(argc - optind, argv + optind, show));
    end(0);
}
