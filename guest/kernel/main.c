/* The start of the kernel, and of the first process. */

#include "kernel.h"

#define BOOTED 0x2badb002u         /* Multiboot 0.6.96, 3.2 */
/* Words of the boot information (3.3), and bits of its first one. */
#define FLAGS 0
#define COMMAND_LINE 4
#define MODULES 5
#define MODULE_ADDRESS 6
#define HAS_COMMAND_LINE (1u << 2)
#define HAS_MODULES (1u << 3)
#define HAS_MAP (1u << 6)
#define FIRST_STACK 0x10000u
#define FIRST_PROCESS "sbin/rs"

struct boot_info boot = {.screen_columns = 80, .screen_rows = 25};

void kernel_main(uint32_t magic, const uint32_t *information);

/* Returns the text behind `word` on the command line, or NULL if it is not there. */
static const char *find_word(const char *word)
{
    uint32_t length = strlen(word);

    for (const char *text = boot.command_line; *text != 0;) {
        if (strncmp(text, word, length) == 0
            && (word[length - 1] == '=' || text[length] == ' ' || text[length] == 0))
            return text + length;
        while (*text != 0 && *text != ' ')
            text++;
        while (*text == ' ')
            text++;
    }
    return NULL;
}

int has_word(const char *word)
{
    return find_word(word) != NULL;
}

static void read_information(const uint32_t *information)
{
    if (information[FLAGS] & HAS_COMMAND_LINE)
        strncpy(boot.command_line, at_physical(information[COMMAND_LINE]), sizeof boot.command_line - 1);
    if (information[FLAGS] & HAS_MODULES && information[MODULES] > 0) {
        const uint32_t *module = at_physical(information[MODULE_ADDRESS]);
        boot.archive = module[0];
        boot.archive_bytes = module[1] - module[0];
    }
}

static void start_first(void)
{
    char path[64] = FIRST_PROCESS;
    const char *wanted = find_word("init="), *name = path;
    struct rights rights = {.service = RS, .traps = ~0u, .send_to = ~0ull, .calls = ~0ull, .manager = RS,
        .ways = BY_MESSAGE | BY_DIRECT_CALL, .port_ranges = 1, .ports = {{0, 0xffff}}, .interrupts = 0xffff,
        .memory_ranges = 1, .memory = {{0, ~0u}}, .priority = 1};
    uint32_t bytes, eip, stack = STACK_TOP - FIRST_STACK, physical;
    const uint8_t *file;
    struct process *process;

    if (wanted != NULL) {
        uint32_t i = 0;
        for (wanted += *wanted == '/'; *wanted != 0 && *wanted != ' ' && i < sizeof path - 1; i++)
            path[i] = *wanted++;
        path[i] = 0;
    }
    for (const char *c = path; *c != 0; c++)
        if (*c == '/')
            name = c + 1;
    strncpy(rights.name, name, NAME_BYTES - 1);
    file = archive_find(path, &bytes);
    if (file == NULL)
        panic("there is no %s in the boot archive, which is the boot loader's first module\n", path);
    process = process_create(rights.name);
    if (process == NULL || process_set_rights(process, &rights) != 0
        || program_load(process, file, bytes, &eip) != 0
        || space_map(process, &stack, FIRST_STACK, MAP_WRITE, &physical) != 0
        || process_start(process, eip, STACK_TOP - 32) != 0)
        panic("%s cannot be started\n", path);
}

void kernel_main(uint32_t magic, const uint32_t *information)
{
    descriptors_start();
    if (magic == BOOTED)
        read_information(information);
    checks_destinations = !has_word("unmasked");
    log_start();
    if (magic != BOOTED || !(information[FLAGS] & HAS_MAP))
        panic("the boot loader does not follow the Multiboot Specification, or gives no memory map\n");
    memory_start(information);
    interrupts_start();
    clock_start();
    numbers_start();
    processes_start();
    log_text("Tern: %u MiB, %u MHz\n", pages_total / 256, tsc_khz / 1000);
    start_first();
    leave(run_next());
}
