// Philox4x32-10, several blocks at a time; the same words in the same order as `resharpen.streams.words`.
#pragma once

#include "../vector.h"

namespace {

typedef uint64_t WideRegister __attribute__((vector_size(kRegisterBytes)));
constexpr int kBlocksAtOnce = kRegisterBytes / 8;

// The 64-bit products of the low halves: one instruction since SSE2, which compilers do not derive from a * b.
RESHARPEN_INLINE WideRegister multiply_low_halves(WideRegister a, WideRegister b) {
#if defined(__AVX512F__)
    return (WideRegister)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (WideRegister)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && !defined(__AVX__)
    return (WideRegister)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

// Replaces kBlocksAtOnce counters by their words. Each 32-bit word is in the low half of a 64-bit element; the high
// half is ignored.
RESHARPEN_INLINE void philox_rounds(const uint32_t key[2], WideRegister c[4]) {
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const WideRegister product0 = multiply_low_halves(c[0], 0xD2511F53u - WideRegister{});
        const WideRegister product1 = multiply_low_halves(c[2], 0xCD9E8D57u - WideRegister{});
        c[0] = (product1 >> 32) ^ c[1] ^ uint64_t(k0);
        c[1] = product1;
        c[2] = (product0 >> 32) ^ c[3] ^ uint64_t(k1);
        c[3] = product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

RESHARPEN_INLINE void store_low_halves(uint32_t* to, WideRegister x) {
    typedef uint32_t HalfRegister __attribute__((vector_size(kRegisterBytes / 2)));
    const HalfRegister low = __builtin_convertvector(x, HalfRegister);
    std::memcpy(to, &low, sizeof low);
}

// kBlocksAtOnce blocks of four words of the stream (index, step, last), from `block` on. Assumes little-endian byte
// order.
inline void philox_blocks(const uint32_t key[2], uint32_t block, uint32_t index, uint32_t step, uint32_t* words,
                          uint32_t last = 0) {
    WideRegister c[4] = {{}, index - WideRegister{}, step - WideRegister{}, last - WideRegister{}};
    for (int i = 0; i < kBlocksAtOnce; i++) c[0][i] = block + i;
    philox_rounds(key, c);
    const WideRegister low = (c[0] & 0xffffffffu) | c[1] << 32, high = (c[2] & 0xffffffffu) | c[3] << 32;
    for (int i = 0; i < kBlocksAtOnce; i++, words += 4) {
        const uint64_t block_words[2] = {low[i], high[i]};
        std::memcpy(words, block_words, sizeof block_words);
    }
}

// At least n words; `words` must have room for n + 4 * kBlocksAtOnce.
inline void philox_words(const uint32_t key[2], uint32_t index, uint32_t step, int n, uint32_t* words,
                         uint32_t last = 0) {
    for (int block = 0; 4 * block < n; block += kBlocksAtOnce)
        philox_blocks(key, block, index, step, words + 4 * block, last);
}

}  // namespace
