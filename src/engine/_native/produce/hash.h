/* The two key hashes, from their published specifications: XXH64 (the xxHash specification, 0.1.1) and
 * Murmur3 x86 32-bit. Both read unaligned little-endian words.
 */
#ifndef ENGINE_HASH_H
#define ENGINE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Seed 42 makes a key's hash that of Spark SQL's xxhash64(). On disk: do not change. */
#define KEY_SEED 42u

#define XXH64_P1 0x9E3779B185EBCA87ull
#define XXH64_P2 0xC2B2AE3D27D4EB4Full
#define XXH64_P3 0x165667B19E3779F9ull
#define XXH64_P4 0x85EBCA77C2B2AE63ull
#define XXH64_P5 0x27D4EB2F165667C5ull

static inline uint64_t hash_load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline uint32_t hash_load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline uint64_t hash_rotate64(uint64_t v, int bits) { return v << bits | v >> (64 - bits); }
static inline uint32_t hash_rotate32(uint32_t v, int bits) { return v << bits | v >> (32 - bits); }

static inline uint64_t xxh64_round(uint64_t lane, uint64_t word) {
    return hash_rotate64(lane + word * XXH64_P2, 31) * XXH64_P1;
}

static inline uint64_t xxh64_merge(uint64_t hash, uint64_t lane) {
    return (hash ^ xxh64_round(0, lane)) * XXH64_P1 + XXH64_P4;
}

/* Steps 1 to 3 for inputs of at least 32 bytes: whole stripes over four lanes, then the lanes' convergence. */
static uint64_t xxh64_stripes(const uint8_t **at, const uint8_t *end, uint64_t seed) {
    const uint8_t *p = *at;
    uint64_t a = seed + XXH64_P1 + XXH64_P2, b = seed + XXH64_P2, c = seed, d = seed - XXH64_P1;
    for (; end - p >= 32; p += 32) {
        a = xxh64_round(a, hash_load64(p));
        b = xxh64_round(b, hash_load64(p + 8));
        c = xxh64_round(c, hash_load64(p + 16));
        d = xxh64_round(d, hash_load64(p + 24));
    }
    *at = p;
    uint64_t hash = hash_rotate64(a, 1) + hash_rotate64(b, 7) + hash_rotate64(c, 12) + hash_rotate64(d, 18);
    return xxh64_merge(xxh64_merge(xxh64_merge(xxh64_merge(hash, a), b), c), d);
}

static inline uint64_t xxh64_hash(const uint8_t *p, size_t n, uint64_t seed) {
    const uint8_t *end = p + n;
    uint64_t hash = n >= 32 ? xxh64_stripes(&p, end, seed) : seed + XXH64_P5;
    hash += n;
    for (; end - p >= 8; p += 8)
        hash = hash_rotate64(hash ^ xxh64_round(0, hash_load64(p)), 27) * XXH64_P1 + XXH64_P4;
    if (end - p >= 4) {
        hash = hash_rotate64(hash ^ hash_load32(p) * XXH64_P1, 23) * XXH64_P2 + XXH64_P3;
        p += 4;
    }
    for (; p < end; p++)
        hash = hash_rotate64(hash ^ *p * XXH64_P5, 11) * XXH64_P1;
    hash = (hash ^ hash >> 33) * XXH64_P2;
    hash = (hash ^ hash >> 29) * XXH64_P3;
    return hash ^ hash >> 32;
}

static inline uint32_t murmur3_mix(uint32_t word) { return hash_rotate32(word * 0xCC9E2D51u, 15) * 0x1B873593u; }

static inline uint32_t murmur3_hash(const uint8_t *p, size_t n, uint32_t seed) {
    const uint8_t *end = p + n;
    uint32_t hash = seed, tail = 0;
    for (; end - p >= 4; p += 4)
        hash = hash_rotate32(hash ^ murmur3_mix(hash_load32(p)), 13) * 5 + 0xE6546B64u;
    for (int i = 0; p < end; p++, i += 8)
        tail |= (uint32_t)*p << i;
    hash ^= murmur3_mix(tail) ^ (uint32_t)n;
    hash = (hash ^ hash >> 16) * 0x85EBCA6Bu;
    hash = (hash ^ hash >> 13) * 0xC2B2AE35u;
    return hash ^ hash >> 16;
}

/* High half: segment hash; low half: bucket hash. `algorithm` is KeyHash of hashing.pxd. */
static inline uint32_t key32_hash(const uint8_t *p, size_t n, int algorithm) {
    if (algorithm == 0) {
        return (uint32_t)(xxh64_hash(p, n, KEY_SEED) >> 32);
    }
    uint32_t h = murmur3_hash(p, n, 0);
    return algorithm == 1 ? h : h << 16 | h >> 16;
}

#endif
