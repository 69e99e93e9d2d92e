/* service: shows and changes what RS does. */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tern/lib.h>
#include <tern/rs.h>
#include <unistd.h>

static const char *const states[] = {"down", "starting", "up", "waiting"};
static const char *const faults[] = {
    [FAULT_POINTER] = "pointer", [FAULT_LOOP] = "loop", [FAULT_PORT] = "port", [FAULT_EXIT] = "exit",
    [FAULT_DUMB] = "dumb", [FAULT_CALL] = "call", [FAULT_DESTINATION] = "destination",
    [FAULT_INTERRUPT] = "interrupt", [FAULT_LATE] = "late"};
static const char *const ways[] = {"message", "direct", "trap", "bitmap", "kernel"};
#define WAYS (int)(sizeof ways / sizeof *ways)

static int usage(void)
{
    fprintf(stderr, "usage: service list\n"
                    "       service up|down|restart NAME\n"
                    "       service upgrade NAME [PROGRAM]\n"
                    "       service script NAME PATH|none   which decides when it has failed\n"
                    "       service way NAME message|direct|trap|bitmap|kernel|configured   from its next start\n"
                    "       service fail NAME pointer|loop|port|exit|dumb|call|destination|interrupt|late\n");
    return 2;
}

static int report(const char *name, int result)
{
    if (result < 0)
        fprintf(stderr, "service: %s: %s\n", name, strerror(-result));
    return result < 0;
}

static const char *way_name(uint32_t way)
{
    for (int i = 0; i < WAYS; i++)
        if (way == 1u << i)
            return ways[i];
    return "-";
}

static int list(void)
{
    static struct service_info services[SERVICES];
    int bytes = rs_list(services, sizeof services);
    if (bytes < 0)
        return report("list", bytes);
    printf("%-16s %3s %-9s %8s %5s %s\n", "NAME", "NUM", "STATE", "RESTARTS", "CAUSE", "WAY");
    for (int i = 0; i < bytes / (int)sizeof *services; i++) {
        const struct service_info *service = &services[i];
        printf("%-16s %3u %-9s %8u %5d %s\n", service->name, (unsigned)service->number,
               service->state < 4 ? states[service->state] : "?", (unsigned)service->restarts,
               (int)service->cause, way_name(service->ways));
    }
    return 0;
}

/* RS cannot read files: it gets the program itself. */
static int upgrade(const char *name, const char *path)
{
    struct stat file;
    if (!path)
        return report(name, rs_call(RS_UPGRADE, name, 0, 0));
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &file) < 0) {
        perror(path);
        return 1;
    }
    char *image = malloc(file.st_size + 1);
    uint32_t have = 0;
    while (image && have < file.st_size) {
        int got = read(fd, image + have, file.st_size - have);
        if (got <= 0)
            break;
        have += got;
    }
    close(fd);
    if (!image || have != file.st_size || have == 0) {
        fprintf(stderr, "service: %s cannot be read\n", path);
        return 1;
    }
    return report(name, rs_call(RS_UPGRADE, name, (uint32_t)image, have));
}

static int set_way(const char *name, const char *way)
{
    if (strcmp(way, "configured") == 0)
        return report(name, rs_call(RS_WAYS, name, 0, 0));
    for (int i = 0; i < WAYS; i++)
        if (strcmp(way, ways[i]) == 0)
            return report(name, rs_call(RS_WAYS, name, 1u << i, 0));
    return usage();
}

static int set_script(const char *name, const char *path)
{
    int none = strcmp(path, "none") == 0;
    if (!none && access(path, R_OK) != 0) {
        perror(path);
        return 1;
    }
    return report(name, rs_call(RS_SCRIPT, name, (uint32_t)path, none ? 0 : strlen(path)));
}

static int fail(const char *name, const char *fault)
{
    for (uint32_t i = FAULT_POINTER; i < sizeof faults / sizeof *faults; i++)
        if (strcmp(fault, faults[i]) == 0)
            return report(name, rs_call(RS_FAULT, name, i, 0));
    return usage();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "list";
    if (strcmp(what, "list") == 0 && argc <= 2)
        return list();
    if (argc == 3 && strcmp(what, "up") == 0)
        return report(argv[2], rs_call(RS_UP, argv[2], 0, 0));
    if (argc == 3 && strcmp(what, "down") == 0)
        return report(argv[2], rs_call(RS_DOWN, argv[2], 0, 0));
    if (argc == 3 && strcmp(what, "restart") == 0)
        return report(argv[2], rs_call(RS_RESTART, argv[2], 0, 0));
    if ((argc == 3 || argc == 4) && strcmp(what, "upgrade") == 0)
        return upgrade(argv[2], argc == 4 ? argv[3] : NULL);
    if (argc == 4 && strcmp(what, "way") == 0)
        return set_way(argv[2], argv[3]);
    if (argc == 4 && strcmp(what, "script") == 0)
        return set_script(argv[2], argv[3]);
    if (argc == 4 && strcmp(what, "fail") == 0)
        return fail(argv[2], argv[3]);
    return usage();
}
