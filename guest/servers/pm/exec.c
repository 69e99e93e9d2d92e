/* Exec: another program in the same process. */

#include <string.h>
#include "pm.h"

#define PATH_BYTES 1024
#define SCRIPT_ARGUMENTS 1024
#define SCRIPT_LEVELS 4

static uint8_t block[PM_ARGUMENT_BYTES] __attribute__((aligned(4)));
static uint8_t other_block[PM_ARGUMENT_BYTES] __attribute__((aligned(4)));

/* The words of the argument block: argc, argv, 0, envp, 0. Returns how many, or 0 if the block is not right:
   each pointer must be an offset within it, and its last byte 0. */
static uint32_t check_block(uint32_t bytes)
{
    const uint32_t *words = (const uint32_t *)block;
    uint32_t count = bytes / 4;
    if (bytes < 12 || block[bytes - 1] != 0 || words[0] > count - 3 || words[words[0] + 1] != 0)
        return 0;
    uint32_t end = words[0] + 2;
    while (end < count && words[end] != 0)
        end++;
    if (end == count)
        return 0;
    for (uint32_t i = 1; i < end; i++)
        if (words[i] >= bytes || (words[i] == 0 && i != words[0] + 1))
            return 0;
    return end + 1;
}

static void relocate(uint32_t base, uint32_t words)
{
    uint32_t *word = (uint32_t *)block;
    for (uint32_t i = 1; i < words; i++)
        if (word[i])
            word[i] += base;
}

/* Takes the first line of a script apart: #!INTERPRETER [ARGUMENT]. */
static int parse_script(char *line, char **interpreter, char **argument)
{
    char *end = strchr(line, '\n');
    if (!end)
        return -ENOEXEC;
    while (end > line && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r'))
        end--;
    *end = 0;
    line += strspn(line, " \t");
    *interpreter = line;
    line += strcspn(line, " \t");
    *argument = NULL;
    if (*line) {
        *line++ = 0;
        *argument = line + strspn(line, " \t");
    }
    return **interpreter && strlen(*interpreter) < PATH_BYTES ? 0 : -ENOEXEC;
}

/* Puts the interpreter, its argument and the script's path in the place of argv[0]. `path` becomes the
   interpreter's. Returns the new length of the block. */
static int use_interpreter(char *path, char *line)
{
    static char *arguments[SCRIPT_ARGUMENTS + 4], *variables[SCRIPT_ARGUMENTS + 1];
    static char script[PATH_BYTES];
    const uint32_t *word = (const uint32_t *)block;
    char *interpreter, *argument;
    uint32_t n = 0, at = 1;
    int result = parse_script(line, &interpreter, &argument);
    if (result)
        return result;
    strcpy(script, path);
    strcpy(path, interpreter);
    arguments[n++] = interpreter;
    if (argument)
        arguments[n++] = argument;
    arguments[n++] = script;
    if (word[0] > SCRIPT_ARGUMENTS)
        return -E2BIG;
    for (at = 2; at <= word[0]; at++)
        arguments[n++] = (char *)block + word[at];
    arguments[n] = NULL;
    n = 0;
    for (at = word[0] + 2; word[at]; at++) {
        if (n == SCRIPT_ARGUMENTS)
            return -E2BIG;
        variables[n++] = (char *)block + word[at];
    }
    variables[n] = NULL;
    result = program_arguments(other_block, sizeof other_block, arguments, variables, 0);
    if (result > 0)
        memcpy(block, other_block, result);
    return result;
}

/* Finds the program: follows scripts to their interpreters. *bytes is the length of the argument block. */
static int find_program(const struct process *process, char *path, uint32_t *bytes, struct program *program,
                        struct contents *contents)
{
    static uint8_t head[PROGRAM_HEAD_BYTES];
    for (int level = 0; level < SCRIPT_LEVELS; level++) {
        int got = image_read(process, path, 0, head, sizeof head, contents);
        if (got < 0)
            return got;
        if (got < 3 || head[0] != '#' || head[1] != '!')
            return program_read(head, got, contents->bytes, program);
        head[got < PROGRAM_HEAD_BYTES ? got : PROGRAM_HEAD_BYTES - 1] = 0;
        int length = use_interpreter(path, (char *)head + 2);
        if (length < 0)
            return length;
        *bytes = length;
    }
    return -ELOOP;
}

/* Makes the new program's memory in place of the old one's. */
static int load(struct process *process, endpoint_t image, uint32_t bytes, uint32_t *esp)
{
    uint32_t stack = STACK_TOP - STACK_BYTES;
    int result = sys_share(image, process->endpoint);
    if (result == 0)
        result = sys_map(process->endpoint, &stack, STACK_BYTES, MAP_WRITE, NULL);
    if (result)
        return result;
    *esp = (STACK_TOP - bytes) & ~15u;
    relocate(*esp, check_block(bytes));
    return sys_copy(SELF, (uint32_t)block, process->endpoint, *esp, bytes);
}

static void set_name(struct process *process, const char *path)
{
    const char *slash = strrchr(path, '/');
    memset(process->name, 0, sizeof process->name);
    strncpy(process->name, slash ? slash + 1 : path, sizeof process->name - 1);
}

/* Executes the program at `path` with the arguments in `block`. From the old memory's end on there is no way
   back: then the process is killed if something fails. */
static int execute(struct process *process, char *path, uint32_t bytes)
{
    struct message fs = {.w = {0}};
    struct program program;
    struct contents contents;
    endpoint_t image = NONE;
    uint32_t esp = 0;
    int result = find_program(process, path, &bytes, &program, &contents);
    if (result == 0)
        result = image_find(process, path, &program, &contents, &image);
    if (result)
        return result;
    result = load(process, image, bytes, &esp);
    if (result == 0)
        result = ask_fs(PM_FS_EXEC, process->endpoint, 0, &fs);
    if (result >= 0) {
        signals_after_exec(process);
        set_name(process, path);
        process->heap_first = process->heap_end = program.end;
        result = sys_start(process->endpoint, program.entry, esp);
    }
    if (result < 0)
        end_process(process, SIGKILL);
    return NO_REPLY;
}

int do_exec(struct message *m)
{
    static char path[PATH_BYTES];
    uint32_t length = m->w[1], bytes = m->w[3];
    if (length < 2 || length > PATH_BYTES)
        return length < 2 ? -ENOENT : -ENAMETOOLONG;
    if (bytes > PM_ARGUMENT_BYTES)
        return -E2BIG;
    if (sys_copy(caller->endpoint, m->w[0], SELF, (uint32_t)path, length) ||
        sys_copy(caller->endpoint, m->w[2], SELF, (uint32_t)block, bytes))
        return -EFAULT;
    if (path[length - 1] != 0 || check_block(bytes) == 0)
        return -EINVAL;
    return execute(caller, path, bytes);
}

int start_init(struct process *process)
{
    static char path[PATH_BYTES] = INIT_PATH;
    static char *const arguments[] = {INIT_PATH, NULL};
    static char *const variables[] = {"PATH=/bin:/sbin:/usr/bin", "HOME=/", NULL};
    int bytes = program_arguments(block, sizeof block, arguments, variables, 0);
    return bytes < 0 ? bytes : execute(process, path, bytes);
}
