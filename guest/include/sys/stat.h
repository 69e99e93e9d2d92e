/* What is known of files. */

#ifndef SYS_STAT_H
#define SYS_STAT_H

#include <sys/types.h>
#include <tern/fs.h> /* struct stat, S_IF */

#define S_ISUID 04000
#define S_ISGID 02000
#define S_ISVTX 01000
#define S_IRWXU 0700
#define S_IRUSR 0400
#define S_IWUSR 0200
#define S_IXUSR 0100
#define S_IRWXG 070
#define S_IRGRP 040
#define S_IWGRP 020
#define S_IXGRP 010
#define S_IRWXO 07
#define S_IROTH 04
#define S_IWOTH 02
#define S_IXOTH 01

#define S_ISREG(mode) (((mode) & S_IFMT) == S_IFREG)
#define S_ISDIR(mode) (((mode) & S_IFMT) == S_IFDIR)
#define S_ISCHR(mode) (((mode) & S_IFMT) == S_IFCHR)
#define S_ISBLK(mode) (((mode) & S_IFMT) == S_IFBLK)
#define S_ISFIFO(mode) (((mode) & S_IFMT) == S_IFIFO)
#define S_ISLNK(mode) (((mode) & S_IFMT) == S_IFLNK)
#define S_ISSOCK(mode) (((mode) & S_IFMT) == S_IFSOCK)

int stat(const char *path, struct stat *to);
int lstat(const char *path, struct stat *to);
int fstat(int fd, struct stat *to);
int chmod(const char *path, mode_t mode);
int mkdir(const char *path, mode_t mode);
int mknod(const char *path, mode_t mode, dev_t device);
int mkfifo(const char *path, mode_t mode);
mode_t umask(mode_t mask);

#endif
