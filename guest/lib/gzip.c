/* Compressed files: gzip (RFC 1952) around deflate (RFC 1951). */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tern/gzip.h>

#define WINDOW 32768 /* bytes to which a match may go back */
#define LENGTHS_MAX 288
#define DISTANCES_MAX 30
#define CODE_BITS 15

static const char TOO_SHORT[] = "unexpected end of file";
static const char MALFORMED[] = "invalid compressed data--format violated";

/* A code in canonical form (RFC 1951, 3.2.2): codes of one length are consecutive, and follow those of
   shorter lengths. `symbols` are in the order of their codes. */
struct code {
    uint16_t count[CODE_BITS + 1]; /* of codes of each length */
    uint16_t symbols[LENGTHS_MAX];
};

struct expansion {
    FILE *from;
    gzip_take *take;
    void *context;
    const char *wrong;
    uint32_t bits, bit_count;      /* read, and not yet used */
    uint32_t used;                 /* bytes of the window that are not yet given away */
    uint32_t crc, bytes;           /* of all that was given away */
    uint8_t full;                  /* the window has been filled once */
    uint32_t crc_table[256];
    struct code lengths, distances;
    uint8_t window[WINDOW];
};

static void fail(struct expansion *e, const char *wrong)
{
    if (!e->wrong)
        e->wrong = wrong;
}

static int next_byte(struct expansion *e)
{
    int c = getc(e->from);
    if (c == EOF)
        fail(e, TOO_SHORT);
    return c == EOF ? 0 : c;
}

/* The next bits, at most 16, the first one lowest. */
static uint32_t take_bits(struct expansion *e, uint32_t count)
{
    while (e->bit_count < count && !e->wrong) {
        e->bits |= (uint32_t)next_byte(e) << e->bit_count;
        e->bit_count += 8;
    }
    uint32_t value = e->bits & ((1u << count) - 1);
    e->bits >>= count;
    e->bit_count -= e->wrong ? 0 : count;
    return value;
}

/* The CRC of RFC 1952, 8. */
static void make_crc_table(struct expansion *e)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t value = n;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
        e->crc_table[n] = value;
    }
}

static void give(struct expansion *e)
{
    uint32_t crc = ~e->crc;
    for (uint32_t i = 0; i < e->used; i++)
        crc = crc >> 8 ^ e->crc_table[(crc ^ e->window[i]) & 255];
    e->crc = ~crc;
    e->bytes += e->used;
    if (!e->wrong && e->used && e->take(e->context, e->window, e->used))
        fail(e, "the output cannot be written");
    e->full |= e->used == WINDOW;
    e->used = 0;
}

static void put(struct expansion *e, uint8_t byte)
{
    e->window[e->used++] = byte;
    if (e->used == WINDOW)
        give(e);
}

/* Makes a code of the lengths of its symbols. An incomplete one is allowed if it has at most one symbol. */
static void make_code(struct expansion *e, struct code *code, const uint8_t *lengths, uint32_t count)
{
    uint16_t next[CODE_BITS + 2] = {0};
    int32_t left = 1;
    memset(code, 0, sizeof *code);
    for (uint32_t i = 0; i < count; i++)
        code->count[lengths[i]]++;
    uint32_t symbols = count - code->count[0];
    code->count[0] = 0;
    for (int length = 1; length <= CODE_BITS; length++) {
        left = 2 * left - code->count[length];
        if (left < 0) {
            fail(e, MALFORMED);
            return;
        }
        next[length + 1] = next[length] + code->count[length];
    }
    if (left > 0 && symbols > 1)
        fail(e, MALFORMED);
    for (uint32_t i = 0; i < count; i++)
        if (lengths[i])
            code->symbols[next[lengths[i]]++] = i;
}

static uint32_t decode(struct expansion *e, const struct code *code)
{
    uint32_t value = 0, first = 0, before = 0;
    for (int length = 1; length <= CODE_BITS && !e->wrong; length++) {
        value = value << 1 | take_bits(e, 1);
        first <<= 1;
        if (value - first < code->count[length])
            return code->symbols[before + value - first];
        first += code->count[length];
        before += code->count[length];
    }
    fail(e, MALFORMED);
    return 0;
}

static void expand_stored(struct expansion *e)
{
    e->bits = e->bit_count = 0; /* whole bytes are never left: take_bits reads no further than it must */
    uint32_t count = take_bits(e, 16), inverted = take_bits(e, 16);
    if (count != (inverted ^ 0xffff))
        fail(e, MALFORMED);
    while (count-- && !e->wrong)
        put(e, (uint8_t)next_byte(e));
}

/* Copies what came before; the parts may overlap. */
static void repeat(struct expansion *e, uint32_t length, uint32_t distance)
{
    if (distance > e->used && !e->full) {
        fail(e, MALFORMED);
        return;
    }
    while (length--)
        put(e, e->window[(e->used - distance) % WINDOW]);
}

/* RFC 1951, 3.2.5. */
static void expand_match(struct expansion *e, uint32_t symbol)
{
    uint32_t length, distance;
    symbol -= 257;
    if (symbol > 28) {
        fail(e, MALFORMED);
        return;
    }
    if (symbol < 8)
        length = symbol + 3;
    else if (symbol == 28)
        length = 258;
    else
        length = ((4 + (symbol & 3)) << (symbol / 4 - 1)) + 3 + take_bits(e, symbol / 4 - 1);
    distance = decode(e, &e->distances);
    if (distance >= DISTANCES_MAX)
        fail(e, MALFORMED);
    else if (distance >= 4)
        distance = ((2 + (distance & 1)) << (distance / 2 - 1)) + take_bits(e, distance / 2 - 1);
    if (!e->wrong)
        repeat(e, length, distance + 1);
}

static void expand_coded(struct expansion *e)
{
    for (;;) {
        uint32_t symbol = decode(e, &e->lengths);
        if (e->wrong || symbol == 256)
            return;
        if (symbol < 256)
            put(e, (uint8_t)symbol);
        else
            expand_match(e, symbol);
    }
}

/* RFC 1951, 3.2.6. */
static void make_fixed_codes(struct expansion *e)
{
    uint8_t lengths[LENGTHS_MAX];
    memset(lengths, 8, 144);
    memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24);
    memset(lengths + 280, 8, 8);
    make_code(e, &e->lengths, lengths, LENGTHS_MAX);
    memset(lengths, 5, 32);
    make_code(e, &e->distances, lengths, 32);
}

/* RFC 1951, 3.2.7: the lengths of both codes are themselves coded. */
static void read_codes(struct expansion *e)
{
    static const uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[LENGTHS_MAX + 32] = {0};
    uint32_t literals = take_bits(e, 5) + 257, distances = take_bits(e, 5) + 1, count = take_bits(e, 4) + 4;
    uint32_t all = literals + distances, i = 0;
    if (literals > 286 || distances > DISTANCES_MAX)
        fail(e, MALFORMED);
    for (uint32_t n = 0; n < count; n++)
        lengths[order[n]] = (uint8_t)take_bits(e, 3);
    make_code(e, &e->lengths, lengths, 19);
    memset(lengths, 0, sizeof lengths);
    while (i < all && !e->wrong) {
        uint32_t symbol = decode(e, &e->lengths), times = 1;
        uint8_t length = symbol < 16 ? (uint8_t)symbol : 0;
        if (symbol == 16 && i == 0)
            fail(e, MALFORMED);
        if (symbol == 16 && i > 0)
            length = lengths[i - 1];
        if (symbol >= 16)
            times = symbol == 18 ? 11 + take_bits(e, 7) : 3 + take_bits(e, symbol == 16 ? 2 : 3);
        if (times > all - i)
            fail(e, MALFORMED);
        for (; times && !e->wrong; times--)
            lengths[i++] = length;
    }
    if (!e->wrong && !lengths[256])
        fail(e, MALFORMED);
    if (e->wrong)
        return;
    make_code(e, &e->lengths, lengths, literals);
    make_code(e, &e->distances, lengths + literals, distances);
}

static void expand_blocks(struct expansion *e)
{
    for (int last = 0; !last && !e->wrong;) {
        last = take_bits(e, 1);
        uint32_t type = take_bits(e, 2);
        if (type == 0) {
            expand_stored(e);
        } else if (type == 1 || type == 2) {
            type == 1 ? make_fixed_codes(e) : read_codes(e);
            expand_coded(e);
        } else {
            fail(e, MALFORMED);
        }
    }
    give(e);
    e->bits = e->bit_count = 0;
}

static uint32_t word(struct expansion *e)
{
    uint32_t low = take_bits(e, 16);
    return low | take_bits(e, 16) << 16;
}

static void skip_string(struct expansion *e)
{
    while (next_byte(e) && !e->wrong)
        ;
}

/* Reads a member behind its first byte. */
static void expand_member(struct expansion *e)
{
    enum { CHECKED = 2, EXTRA = 4, NAME = 8, COMMENT = 16, RESERVED = 0xe0 };
    if (getc(e->from) != 0x8b || getc(e->from) != 8) {
        fail(e, "not in gzip format");
        return;
    }
    uint32_t flags = take_bits(e, 8);
    take_bits(e, 16); /* time, */
    take_bits(e, 16);
    take_bits(e, 16); /* how it was compressed, and on which system */
    if (flags & RESERVED)
        fail(e, "it has flags that are not known");
    for (uint32_t extra = flags & EXTRA ? take_bits(e, 16) : 0; extra && !e->wrong; extra--)
        next_byte(e);
    if (flags & NAME)
        skip_string(e);
    if (flags & COMMENT)
        skip_string(e);
    if (flags & CHECKED)
        take_bits(e, 16);
    e->crc = e->bytes = 0;
    e->full = 0;
    expand_blocks(e);
    uint32_t crc = e->crc, bytes = e->bytes;
    if (word(e) != crc)
        fail(e, "invalid compressed data--crc error");
    if (word(e) != bytes)
        fail(e, "invalid compressed data--length error");
}

const char *gzip_expand(FILE *from, gzip_take *take, void *context)
{
    struct expansion *e = calloc(1, sizeof *e);
    if (!e)
        return "out of memory";
    *e = (struct expansion){.from = from, .take = take, .context = context};
    make_crc_table(e);
    int c = getc(from);
    if (c != 0x1f)
        fail(e, c == EOF ? TOO_SHORT : "not in gzip format");
    while (c == 0x1f && !e->wrong) {
        expand_member(e);
        /* Archives on tapes are filled up with zeros. */
        do
            c = e->wrong ? EOF : getc(from);
        while (c == 0);
    }
    if (c != EOF && !e->wrong)
        fail(e, "there is something else behind the compressed data");
    if (ferror(from))
        e->wrong = "it cannot be read";
    const char *wrong = e->wrong;
    free(e);
    return wrong;
}
