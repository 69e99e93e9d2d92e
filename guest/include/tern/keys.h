/* Keys of ANSI terminals. */

#ifndef TERN_KEYS_H
#define TERN_KEYS_H

#define CONTROL(letter) ((letter) - '@')

enum key {
    KEY_UP = 256, KEY_DOWN, KEY_RIGHT, KEY_LEFT, KEY_HOME, KEY_END, KEY_DELETE, KEY_PAGE_UP, KEY_PAGE_DOWN,
    KEY_OTHER
};

/* Reads a character or a key (enum key) from standard input, whose terminal gives each byte at once. Returns
   -1 at the end. */
int read_key(void);

#endif
