/* File systems. */

#ifndef SYS_MOUNT_H
#define SYS_MOUNT_H

#define MS_RDONLY 1

int mount(const char *device, const char *directory, const char *type, unsigned long flags, const void *data);
int umount(const char *directory);

#endif
