/* CRC32C (Castagnoli, reflected polynomial 0x82F63B78): the processor's instruction in three interleaved
 * streams, or eight tables where there is none.
 *
 * The instruction has a latency of three cycles and a throughput of one, so one stream leaves two thirds of the
 * unit idle. Three neighbouring blocks are summed at once:
 *
 *     | block A: crc  | block B: 0    | block C: 0    |  next three ...
 *       a               b               c                  8 bytes of each a step
 *
 *     crc = advance(advance(a) ^ b) ^ c
 *
 * where advance() is what a block of zero bytes does to a sum. The joining is exact because a CRC is linear: the sum of
 * A followed by B is that of A followed by zeros, xor that of B from 0. Advancing is linear in the sum's 32 bits, too:
 * four table look-ups, one for each byte. Long inputs go in blocks of CRC32C_LONG bytes, what remains in blocks of
 * CRC32C_SHORT, then in words, then in bytes. All tables are computed once, by crc32c_prepare().
 */
#ifndef ENGINE_CRC32C_H
#define ENGINE_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Engine's formats are little-endian and so must the processor be"
#endif

#define CRC32C_POLYNOMIAL 0x82F63B78u
#define CRC32C_LONG 4096u /* bytes per stream, large inputs */
#define CRC32C_SHORT 256u /* bytes per stream, what remains */

/* Fixed after crc32c_prepare(). */
static uint32_t crc32c_tables[8][256];        /* one byte, followed by 0..7 zero bytes */
static uint32_t crc32c_over_long[4][256];     /* a sum's byte, advanced over CRC32C_LONG zero bytes */
static uint32_t crc32c_over_short[4][256];    /* the same over CRC32C_SHORT */
static uint32_t (*crc32c_raw)(uint32_t, const uint8_t *, size_t); /* by instruction or by table */

static inline uint64_t crc32c_load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

/* Eight bytes a step by tables. Works on the raw register: no inversion at either end. */
static uint32_t crc32c_by_table(uint32_t crc, const uint8_t *p, size_t n) {
    uint32_t(*t)[256] = crc32c_tables;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w = crc32c_load64(p) ^ crc;
        crc = t[7][w & 255] ^ t[6][w >> 8 & 255] ^ t[5][w >> 16 & 255] ^ t[4][w >> 24 & 255] ^
              t[3][w >> 32 & 255] ^ t[2][w >> 40 & 255] ^ t[1][w >> 48 & 255] ^ t[0][w >> 56];
    }
    for (; n; n--)
        crc = t[0][(crc ^ *p++) & 255] ^ crc >> 8;
    return crc;
}

static inline uint32_t crc32c_advance(uint32_t over[4][256], uint32_t crc) {
    return over[0][crc & 255] ^ over[1][crc >> 8 & 255] ^ over[2][crc >> 16 & 255] ^ over[3][crc >> 24];
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#ifdef __clang__
#define CRC32C_HARDWARE __attribute__((target("sse4.2,crc32")))
#else
#define CRC32C_HARDWARE __attribute__((target("sse4.2")))
#endif
#define CRC32C_STEP64(crc, word) _mm_crc32_u64((crc), (word))
#define CRC32C_STEP8(crc, byte) _mm_crc32_u8((uint32_t)(crc), (byte))
static int crc32c_has_hardware(void) { /* without the compiler's own library, which not every linker has */
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 20); /* SSE4.2 */
}
#elif defined(__aarch64__) && (defined(__ARM_FEATURE_CRC32) || defined(__linux__))
#include <arm_acle.h>
#define CRC32C_STEP64(crc, word) __crc32cd((uint32_t)(crc), (word))
#define CRC32C_STEP8(crc, byte) __crc32cb((uint32_t)(crc), (byte))
#ifdef __ARM_FEATURE_CRC32
#define CRC32C_HARDWARE
static int crc32c_has_hardware(void) { return 1; }
#else /* compiled for all processors: the system says which one it is */
#include <sys/auxv.h>
#ifdef __clang__
#define CRC32C_HARDWARE __attribute__((target("crc")))
#else
#define CRC32C_HARDWARE __attribute__((target("+crc")))
#endif
static int crc32c_has_hardware(void) { return (getauxval(AT_HWCAP) & 1 << 7) != 0; } /* HWCAP_CRC32 */
#endif
#else
static int crc32c_has_hardware(void) { return 0; }
#endif

#ifdef CRC32C_STEP64
/* Three blocks of `block` bytes each (a multiple of 8), from p. */
CRC32C_HARDWARE static inline uint32_t crc32c_three(uint32_t crc, const uint8_t *p, size_t block,
                                                    uint32_t over[4][256]) {
    uint64_t a = crc, b = 0, c = 0;
    for (const uint8_t *end = p + block; p < end; p += 8) {
        a = CRC32C_STEP64(a, crc32c_load64(p));
        b = CRC32C_STEP64(b, crc32c_load64(p + block));
        c = CRC32C_STEP64(c, crc32c_load64(p + 2 * block));
    }
    crc = crc32c_advance(over, (uint32_t)a) ^ (uint32_t)b;
    return crc32c_advance(over, crc) ^ (uint32_t)c;
}

CRC32C_HARDWARE static uint32_t crc32c_by_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 3 * CRC32C_LONG; p += 3 * CRC32C_LONG, n -= 3 * CRC32C_LONG)
        crc = crc32c_three(crc, p, CRC32C_LONG, crc32c_over_long);
    for (; n >= 3 * CRC32C_SHORT; p += 3 * CRC32C_SHORT, n -= 3 * CRC32C_SHORT)
        crc = crc32c_three(crc, p, CRC32C_SHORT, crc32c_over_short);
    uint64_t wide = crc;
    for (; n >= 8; p += 8, n -= 8)
        wide = CRC32C_STEP64(wide, crc32c_load64(p));
    crc = (uint32_t)wide;
    for (; n; n--)
        crc = CRC32C_STEP8(crc, *p++);
    return crc;
}
#endif

static void crc32c_prepare_advance(uint32_t over[4][256], size_t zeros) {
    static const uint8_t zero[CRC32C_SHORT];
    uint32_t bits[32];
    for (int bit = 0; bit < 32; bit++) {
        bits[bit] = 1u << bit;
        for (size_t done = 0; done < zeros; done += CRC32C_SHORT)
            bits[bit] = crc32c_by_table(bits[bit], zero, CRC32C_SHORT);
    }
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++) {
            uint32_t sum = 0;
            for (int bit = 0; bit < 8; bit++)
                sum ^= value >> bit & 1 ? bits[8 * byte + bit] : 0;
            over[byte][value] = sum;
        }
}

/* Fill the tables and choose the way. Called once, while the module is imported. */
static void crc32c_prepare(void) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_tables[0][value] = crc;
    }
    for (int zeros = 1; zeros < 8; zeros++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = crc32c_tables[zeros - 1][value];
            crc32c_tables[zeros][value] = crc32c_tables[0][crc & 255] ^ crc >> 8;
        }
    crc32c_prepare_advance(crc32c_over_long, CRC32C_LONG);
    crc32c_prepare_advance(crc32c_over_short, CRC32C_SHORT);
    crc32c_raw = crc32c_by_table;
#ifdef CRC32C_STEP64
    if (crc32c_has_hardware())
        crc32c_raw = crc32c_by_instruction;
#endif
}

#endif
