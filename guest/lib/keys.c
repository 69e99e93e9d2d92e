/* Keys of ANSI terminals: ESC [ letter, ESC [ number ~, ESC O letter. */

#include <string.h>
#include <tern/keys.h>
#include <unistd.h>

#define ESCAPE 27

static int next_byte(void)
{
    unsigned char c;
    return read(0, &c, 1) == 1 ? c : -1;
}

static int numbered(int number)
{
    static const enum key keys[] = {KEY_OTHER, KEY_HOME, KEY_OTHER, KEY_DELETE, KEY_END, KEY_PAGE_UP,
                                    KEY_PAGE_DOWN, KEY_HOME, KEY_END};
    return number < (int)(sizeof keys / sizeof *keys) ? keys[number] : KEY_OTHER;
}

int read_key(void)
{
    static const char letters[] = "ABCDHF";
    int c = next_byte(), number = 0;
    if (c != ESCAPE)
        return c;
    c = next_byte();
    if (c != '[' && c != 'O')
        return c < 0 ? c : KEY_OTHER;
    while ((c = next_byte()) >= '0' && c <= '9')
        number = number < 100 ? number * 10 + c - '0' : number;
    if (c == '~')
        return numbered(number);
    const char *letter = c > 0 ? strchr(letters, c) : NULL;
    return letter ? KEY_UP + (int)(letter - letters) : c < 0 ? c : KEY_OTHER;
}
