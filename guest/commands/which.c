/* which COMMAND...: the files that commands are in. */

#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>

static int show(const char *command)
{
    const char *path = getenv("PATH") ? getenv("PATH") : "";
    char name[1024];
    size_t length;
    if (strchr(command, '/') && access(command, X_OK) == 0)
        return puts(command) < 0;
    for (; *path && !strchr(command, '/'); path += length + (path[length] == ':')) {
        length = strcspn(path, ":");
        snprintf(name, sizeof name, "%.*s/%s", (int)length, path, command);
        if (access(name, X_OK) == 0)
            return puts(name) < 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    int failed = 0;
    if (getopt(argc, argv, "") != -1 || optind == argc)
        return usage("which COMMAND...");
    for (int i = optind; i < argc; i++)
        failed |= show(argv[i]);
    return failed;
}
