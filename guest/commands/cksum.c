/* cksum [FILE...]: POSIX's checksum, number of bytes and name of each file. */

#include <stdint.h>
#include <stdio.h>

static uint32_t table[256];

static void make_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i << 24;
        for (int bit = 0; bit < 8; bit++)
            value = value & 0x80000000u ? value << 1 ^ 0x04c11db7u : value << 1;
        table[i] = value;
    }
}

static uint32_t step(uint32_t sum, uint32_t byte)
{
    return sum << 8 ^ table[(sum >> 24 ^ byte) & 255];
}

static int show(FILE *file, const char *name)
{
    static unsigned char buffer[65536];
    uint32_t sum = 0;
    unsigned long bytes = 0;
    size_t got;
    while ((got = fread(buffer, 1, sizeof buffer, file)) > 0) {
        for (size_t i = 0; i < got; i++)
            sum = step(sum, buffer[i]);
        bytes += got;
    }
    if (ferror(file)) {
        perror(name ? name : "cksum");
        return 1;
    }
    for (unsigned long rest = bytes; rest; rest >>= 8)
        sum = step(sum, rest & 255);
    printf("%lu %lu%s%s\n", (unsigned long)(uint32_t)~sum, bytes, name ? " " : "", name ? name : "");
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;
    make_table();
    if (argc == 1)
        return show(stdin, NULL);
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file) {
            perror(argv[i]);
            failed = 1;
            continue;
        }
        failed |= show(file, argv[i]);
        fclose(file);
    }
    return failed;
}
