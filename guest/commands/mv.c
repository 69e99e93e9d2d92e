/* mv FROM TO, mv FROM... DIRECTORY: renames files. Between file systems it copies and removes. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH_BYTES 1024

static int run(const char *program, const char *option, const char *first, const char *second)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        execlp(program, program, option, first, second, (char *)NULL);
        _exit(127);
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
}

static int move(const char *source, const char *target)
{
    if (rename(source, target) == 0)
        return 0;
    if (errno == EXDEV)
        return run("cp", "-r", source, target) || run("rm", "-r", source, NULL);
    fprintf(stderr, "mv: %s: %s\n", source, strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    struct stat status;
    int failed = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: mv FROM... TO\n");
        return 2;
    }
    const char *target = argv[argc - 1];
    int into = stat(target, &status) == 0 && S_ISDIR(status.st_mode);
    if (argc > 3 && !into) {
        fprintf(stderr, "mv: %s is no directory\n", target);
        return 1;
    }
    for (int i = 1; i < argc - 1; i++) {
        const char *slash = strrchr(argv[i], '/');
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", target, slash && slash[1] ? slash + 1 : argv[i]);
        failed |= move(argv[i], into ? path : target);
    }
    return failed;
}
