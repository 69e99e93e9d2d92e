/* df [PATH...]: how full file systems are; without a path that of the root. */

#include <stdio.h>
#include <sys/statfs.h>

static int show(const char *path)
{
    struct statfs status;
    if (statfs(path, &status)) {
        perror(path);
        return 1;
    }
    unsigned long long unit = status.block_bytes;
    printf("%-8.8s %10llu %10llu %10llu %8u %s\n", status.type, status.blocks * unit / 1024,
           (status.blocks - status.free_blocks) * unit / 1024, status.free_blocks * unit / 1024,
           (unsigned)status.free_inodes, path);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;
    printf("%-8s %10s %10s %10s %8s %s\n", "TYPE", "KiB", "USED", "FREE", "INODES", "PATH");
    if (argc == 1)
        return show("/");
    for (int i = 1; i < argc; i++)
        failed |= show(argv[i]);
    return failed;
}
