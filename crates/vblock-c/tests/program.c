/* Uses all calls of the library against a real server; the test in c.rs changes the server's devices. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vblock.h"

#define SMALL 4096
#define LARGE (3 << 20)

static int completed, failed;
static char *last;

static void complete(char *base, int error)
{
	completed++;
	failed += error != 0;
	last = base;
	/* The library can be used from here. */
	assert(vblock_ndevs() >= 1);
}

/* Tells the test that a step is done, and waits for its answer. */
static void step(const char *name)
{
	char line[16];
	printf("%s\n", name);
	fflush(stdout);
	assert(fgets(line, sizeof line, stdin));
}

int main(int argc, char **argv)
{
	unsigned long blocks, size;
	char *base, *other;
	void *buffer, *large;
	int i, error;

	assert(vblock_ndevs() == 0 && vblock_read(0, NULL, 0, 512) == ENOTCONN);
	assert(vblock_init_at("/nowhere/at/all", complete) == ENOENT);
	assert(vblock_init(complete) == 0 && vblock_init(complete) == EALREADY);
	assert(vblock_ndevs() == 1 && !strcmp(vblock_name(0), "disk") && !vblock_name(1));
	vblock_get_geometry(0, &blocks, &size);
	assert(blocks == 8192 && size == 512);
	vblock_get_geometry(7, &blocks, &size);
	assert(blocks == 0 && size == 0);

	assert((buffer = vblock_get_buffer(SMALL, &base)) && (large = vblock_get_buffer(LARGE, &other)));
	assert(!vblock_get_buffer(1u << 30, NULL));
	memset(base, 'x', SMALL);
	assert(vblock_write(0, buffer, 512, SMALL) == 0);
	memset(base, 0, SMALL);
	assert(vblock_read(0, buffer, 512, SMALL) == 0 && base[0] == 'x' && base[SMALL - 1] == 'x');
	for (i = 0; i < LARGE; i++)
		other[i] = i / 512;
	assert(vblock_write_async(0, large, 65536, LARGE) == 0);
	/* A completion that is found by another call. */
	assert(vblock_read(0, buffer, 0, SMALL) == 0 && base[511] == 0 && base[512] == 'x');
	while (completed < 1)
		assert(vblock_poll(-1) >= 0);
	assert(completed == 1 && !failed && last == other);
	memset(other, 0, LARGE);
	assert(vblock_read_async(0, large, 65536, LARGE) == 0);
	/* As many operations as there is room for. */
	for (i = 0; (error = vblock_read_async(0, buffer, 512, 512)) == 0 && i < 1000; i++)
		;
	assert(error == EAGAIN || i == 1000);
	while (completed < i + 2)
		assert(vblock_poll(-1) >= 0);
	for (i = 0; i < LARGE; i++)
		assert(other[i] == (char)(i / 512));
	assert(vblock_sync(0) == 0 && !failed);

	/* Mistakes. */
	assert(vblock_read(0, buffer, 1, 512) == EINVAL && vblock_read(0, buffer, 0, 513) == EINVAL);
	assert(vblock_read(0, buffer, 8192ull * 512, 512) == EINVAL);
	assert(vblock_read(0, buffer, ~0ull - 511, 512) == EINVAL);
	assert(vblock_read(0, buffer, 0, SMALL + 512) == EINVAL && vblock_read(0, base + 1, 0, 512) == EINVAL);
	assert(vblock_read(1, buffer, 0, 512) == ENODEV && vblock_sync(-1) == ENODEV);
	vblock_return_buffer(buffer);
	vblock_return_buffer(buffer);
	assert(vblock_read(0, buffer, 0, 512) == EINVAL);
	assert(vblock_poll(0) == 0);

	/* The server grants another disk, and changes its size. */
	step("one disk");
	while (vblock_ndevs() < 2)
		vblock_poll(-1);
	assert(!strcmp(vblock_name(1), "other"));
	assert(vblock_write(1, large, 0, 512) == EROFS && vblock_read(1, large, 0, 512) == 0);
	step("two disks");
	do
		vblock_get_geometry(1, &blocks, &size);
	while (blocks != 4096);
	/* The right is taken away, with a server that dies in between. */
	step("resized");
	do
		vblock_get_geometry(1, &blocks, &size);
	while (blocks);
	assert(vblock_ndevs() == 2 && vblock_read(1, large, 0, 512) == ENODEV);
	step("gone");
	assert(vblock_read(0, large, 65536, LARGE) == 0 && other[512 * 3] == 3);
	vblock_exit();
	assert(vblock_ndevs() == 0);
	puts("done");
	return 0;
}
