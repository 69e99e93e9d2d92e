/* Requests of processes to the file system. Paths are (address, length without the final 0) in the caller's
   memory. Numbers of structures and modes are POSIX's. Offsets and sizes have 32 bits; files end at 2 GiB. */

#ifndef TERN_FS_H
#define TERN_FS_H

#include <stdint.h>
#include <tern/ipc.h>

enum fs_request {
    FS_OPEN = 0x200,   /* path, length, flags (O_), mode -> descriptor */
    FS_CLOSE,          /* descriptor */
    FS_READ,           /* descriptor, address, bytes -> bytes */
    FS_WRITE,          /* descriptor, address, bytes -> bytes */
    FS_SEEK,           /* descriptor, offset, whence -> offset */
    FS_STAT,           /* path, length, address of struct stat */
    FS_FSTAT,          /* descriptor, address of struct stat */
    FS_LSTAT,          /* path, length, address of struct stat */
    FS_DIRECTORY,      /* descriptor, address, bytes -> bytes of struct directory_entry[] */
    FS_LINK,           /* path, length, new path, length */
    FS_SYMLINK,        /* contents, length, new path, length */
    FS_READLINK,       /* path, length, address, bytes -> bytes */
    FS_UNLINK,         /* path, length */
    FS_RENAME,         /* path, length, new path, length */
    FS_MKDIR,          /* path, length, mode */
    FS_RMDIR,          /* path, length */
    FS_CHDIR,          /* path, length */
    FS_GETCWD,         /* address, bytes -> length */
    FS_CHMOD,          /* path, length, mode */
    FS_TRUNCATE,       /* descriptor, bytes */
    FS_DUP,            /* descriptor, new one or -1 -> descriptor */
    FS_FCNTL,          /* descriptor, command (F_), argument -> result */
    FS_PIPE,           /* -> descriptor to read, descriptor to write */
    FS_IOCTL,          /* descriptor, request, address or value -> result */
    FS_SELECT,         /* bits to read, bits to write, microseconds or -1 -> bits, bits (descriptors 0 to
                          31) */
    FS_SYNC,
    FS_MOUNT,          /* device's path, length, directory, length, flags (1: read only), type's name: 4
                          chars */
    FS_UMOUNT,         /* directory, length */
    FS_UTIME,          /* path, length, seconds */
    FS_MKNOD,          /* path, length, mode, device */
    FS_STATFS,         /* path, length, address of struct statfs */
    FS_ACCESS,         /* path, length, mode */
    FS_READ_AT,        /* descriptor, address, bytes, offset -> bytes: leaves the descriptor's own offset
                          alone */
    FS_WRITE_AT,       /* the same (with O_APPEND at the end, whatever the offset) */

    /* From services only. */
    FS_DEVICE_UP = 0x280 /* from RS: major number, endpoint, first and last minor number (drivers can share a
                            major number): a driver was started or replaced; endpoint NONE: it was ended for
                            good */
};

#define O_RDONLY 0
#define O_WRONLY 1
#define O_RDWR 2
#define O_CREAT 0100
#define O_EXCL 0200
#define O_TRUNC 01000
#define O_APPEND 02000
#define O_NONBLOCK 04000
#define O_DIRECTORY 0200000
#define O_CLOEXEC 02000000

#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2

#define F_DUPFD 0
#define F_GETFD 1
#define F_SETFD 2
#define F_GETFL 3
#define F_SETFL 4

#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define S_IFLNK 0120000
#define S_IFREG 0100000
#define S_IFBLK 0060000
#define S_IFDIR 0040000
#define S_IFCHR 0020000
#define S_IFIFO 0010000

struct stat {
    uint32_t st_dev, st_ino, st_mode, st_nlink, st_uid, st_gid, st_rdev, st_size;
    uint32_t st_blksize, st_blocks, st_atime, st_mtime, st_ctime;
};

struct directory_entry {
    uint32_t inode;
    uint16_t bytes;        /* of this entry, a multiple of 4 */
    uint8_t type;          /* 1 file, 2 directory, 3 character device, 4 block device, 5 pipe, 7 symbolic
                              link */
    uint8_t length;        /* of the name */
    char name[];
};

struct statfs {
    uint32_t block_bytes, blocks, free_blocks, inodes, free_inodes;
    char type[8];
};

#define DESCRIPTORS 32

/* Device numbers: major << 8 | minor. The major number names the driver. */
#define MAJOR_MEMORY 1     /* null 3, zero 5: by FS itself */
#define MAJOR_TERMINAL 4   /* console 0, serial lines from 64 */
#define MAJOR_TTY 5        /* 0: the terminal of the process's group */
#define MAJOR_ATA 3        /* whole disk 0, 64; partitions behind */
#define MAJOR_VIRTIO 8     /* whole disk 0, 16; partitions behind */
#define MAJOR_CLOCK 10     /* /dev/clock, /dev/rtc, /dev/speaker */
#define MAJOR_NET 12        /* /dev/tcp, /dev/udp, /dev/icmp, and a number for each socket: tern/net.h */
#define MAJOR_HAL 14        /* /dev/hal: drivers/hal */
#define MAJORS 16

#endif
