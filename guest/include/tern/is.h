/* The information server. */

#ifndef TERN_IS_H
#define TERN_IS_H

enum is_request {
    IS_DUMP = 0x580,   /* a table (IS_), address, bytes -> bytes of text */
    IS_KEY             /* a table: goes to the kernel's log. From the console's driver, for function keys */
};

#define IS_PROCESSES 1
#define IS_MESSAGES 2
#define IS_RIGHTS 3
#define IS_MEMORY 4
#define IS_LOG 5

#endif
