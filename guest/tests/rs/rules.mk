# How RS reads its configuration, in a program of the host.

test-rs:
	mkdir -p build/tests
	gcc -m32 -std=gnu99 -O1 -Wall -Wextra -ffreestanding -nostdinc -fno-pic -no-pie -Iinclude \
		-fsanitize=undefined -o build/tests/rs tests/rs/configuration.c servers/rs/configuration.c
	build/tests/rs etc/services

.PHONY: test-rs
