/* Processes, files and the rest of POSIX's requests. */

#ifndef UNISTD_H
#define UNISTD_H

#include <sys/types.h>
#include <tern/fs.h> /* SEEK_ */

#define STDIN_FILENO 0
#define STDOUT_FILENO 1
#define STDERR_FILENO 2

#define F_OK 0
#define X_OK 1
#define W_OK 2
#define R_OK 4

extern char **environ;

/* Processes. */
pid_t fork(void);
pid_t vfork(void);
int execve(const char *path, char *const argv[], char *const envp[]);
int execv(const char *path, char *const argv[]);
int execvp(const char *file, char *const argv[]);
int execl(const char *path, const char *first, ...);
int execlp(const char *file, const char *first, ...);
void _exit(int status) __attribute__((noreturn));
pid_t getpid(void);
pid_t getppid(void);
int setpgid(pid_t pid, pid_t group);
pid_t getpgid(pid_t pid);
pid_t getpgrp(void);
pid_t setsid(void);
uid_t getuid(void);
uid_t geteuid(void);
gid_t getgid(void);
gid_t getegid(void);

/* Memory. */
int brk(void *end);
void *sbrk(intptr_t bytes);

/* Time. */
unsigned alarm(unsigned seconds);
unsigned sleep(unsigned seconds);
int usleep(useconds_t microseconds);
int pause(void);

/* Open files. */
int close(int fd);
ssize_t read(int fd, void *to, size_t bytes);
ssize_t write(int fd, const void *from, size_t bytes);
ssize_t pread(int fd, void *to, size_t bytes, off_t offset);
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset);
off_t lseek(int fd, off_t offset, int whence);
int dup(int fd);
int dup2(int fd, int to);
int pipe(int fds[2]);
int ftruncate(int fd, off_t bytes);
int fsync(int fd);
int isatty(int fd);
pid_t tcgetpgrp(int fd);
int tcsetpgrp(int fd, pid_t group);

/* Names of files. */
int access(const char *path, int mode);
int link(const char *path, const char *another);
int symlink(const char *contents, const char *path);
ssize_t readlink(const char *path, char *to, size_t bytes);
int unlink(const char *path);
int rmdir(const char *path);
int chdir(const char *path);
char *getcwd(char *to, size_t bytes);
int truncate(const char *path, off_t bytes);
void sync(void);

int gethostname(char *name, size_t bytes);

/* For getopt, see getopt.h. */
#include <getopt.h>

#endif
