# The file systems in a program of the host, against each other and against e2fsprogs.

FS_TEST := $(BUILD)/tests/fs
FS_TESTED := archive cache ext2_allocate ext2_directory ext2_file ext2_inode ext2_map ext2_volume memory \
	mount names node path pool

$(FS_TEST): $(wildcard tests/fs/*.c servers/fs/*.c)
	@mkdir -p $(dir $@)
	gcc -m32 -O1 -g -Wall -fsanitize=undefined,address -idirafter include -Iservers/fs -o $@ tests/fs/*.c \
		$(FS_TESTED:%=servers/fs/%.c)

test-fs: $(FS_TEST)
	for seed in 1 2 3 4 5; do \
		case $$seed in 4) bytes=2048 ;; 5) bytes=4096 ;; *) bytes=1024 ;; esac; \
		mke2fs -q -F -t ext2 -b $$bytes $(FS_TEST).img 16384 && \
		rm -rf $(FS_TEST).files && mkdir $(FS_TEST).files && \
		$(FS_TEST) model $(FS_TEST).img $$seed 20000 $(FS_TEST).files && e2fsck -f -n $(FS_TEST).img || exit 1; \
	done
	mke2fs -q -F -t ext2 -b 4096 $(FS_TEST).img 16384
	$(FS_TEST) fill $(FS_TEST).img
	e2fsck -f -n $(FS_TEST).img
	mke2fs -q -F -t ext2 -b 1024 $(FS_TEST).img 8192
	$(FS_TEST) hostile $(FS_TEST).img 1 100

.PHONY: test-fs
