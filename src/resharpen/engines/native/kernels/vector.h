// Vectors of sixteen floats for every instruction set, and functions of them.
//
// In `model_lanes/` lane i of every vector belongs to draw i of a group of sixteen, and no value moves between lanes,
// so results of a model do not depend on the others. In `feature_lanes/` lanes are sixteen neighboring features. An
// f32x16 is one AVX-512 register, two AVX registers, or four SSE or NEON registers.
//
// NaN and infinity indicate a diverged model, so kernels are built without -ffast-math. Approximations below document
// how they treat NaN and infinity.
//
// Every kernel is one translation unit, so all headers use an anonymous namespace: calls are direct and can be inlined.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int kLanes = 16;
#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif
constexpr int kPerVector = 64 / kRegisterBytes;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

typedef float FloatRegister __attribute__((vector_size(kRegisterBytes)));
typedef int32_t IntRegister __attribute__((vector_size(kRegisterBytes)));
typedef uint32_t UnsignedRegister __attribute__((vector_size(kRegisterBytes)));

#define RESHARPEN_INLINE inline __attribute__((always_inline))
#define RESHARPEN_UNROLL _Pragma("GCC unroll 32")

// Copied register by register: compilers copy a plain struct through memory.
struct alignas(64) f32x16 {
    FloatRegister reg[kPerVector];

    f32x16() = default;
    RESHARPEN_INLINE f32x16(const f32x16& x) { *this = x; }
    RESHARPEN_INLINE f32x16& operator=(const f32x16& x) {
        RESHARPEN_UNROLL
        for (int i = 0; i < kPerVector; i++) reg[i] = x.reg[i];
        return *this;
    }
};

// ---- element by element -------------------------------------------------------------------------------------------

template <class F>
RESHARPEN_INLINE f32x16 map(F f, f32x16 a) {
    f32x16 y;
    RESHARPEN_UNROLL
    for (int i = 0; i < kPerVector; i++) y.reg[i] = f(a.reg[i]);
    return y;
}

template <class F>
RESHARPEN_INLINE f32x16 map(F f, f32x16 a, f32x16 b) {
    f32x16 y;
    RESHARPEN_UNROLL
    for (int i = 0; i < kPerVector; i++) y.reg[i] = f(a.reg[i], b.reg[i]);
    return y;
}

RESHARPEN_INLINE f32x16 broadcast(float x) {
    f32x16 y;
    RESHARPEN_UNROLL
    for (int i = 0; i < kPerVector; i++) y.reg[i] = x - FloatRegister{};  // x - 0 is x, signed zero included
    return y;
}

// Register by register: a copy of the whole array may use smaller stores than the following load, which then stalls.
RESHARPEN_INLINE f32x16 load(const float* lanes) {
    f32x16 y;
    RESHARPEN_UNROLL
    for (int i = 0; i < kPerVector; i++) std::memcpy(&y.reg[i], lanes + i * kLanes / kPerVector, kRegisterBytes);
    return y;
}

RESHARPEN_INLINE void store(float* lanes, f32x16 x) {
    RESHARPEN_UNROLL
    for (int i = 0; i < kPerVector; i++) std::memcpy(lanes + i * kLanes / kPerVector, &x.reg[i], kRegisterBytes);
}

// Set an array of numbers, vectors or structures of them to zero.
template <class T, std::size_t N>
inline void clear(T (&x)[N]) {
    std::memset(static_cast<void*>(x), 0, sizeof x);
}

RESHARPEN_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
    return map([](FloatRegister x, FloatRegister y) { return x + y; }, a, b);
}
RESHARPEN_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
    return map([](FloatRegister x, FloatRegister y) { return x - y; }, a, b);
}
RESHARPEN_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
    return map([](FloatRegister x, FloatRegister y) { return x * y; }, a, b);
}
RESHARPEN_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
    return map([](FloatRegister x, FloatRegister y) { return x / y; }, a, b);
}
RESHARPEN_INLINE f32x16 operator*(float a, f32x16 b) { return broadcast(a) * b; }
RESHARPEN_INLINE f32x16 operator-(f32x16 a) {
    return map([](FloatRegister x) { return -x; }, a);
}
RESHARPEN_INLINE f32x16& operator+=(f32x16& a, f32x16 b) { return a = a + b; }
RESHARPEN_INLINE f32x16& operator-=(f32x16& a, f32x16 b) { return a = a - b; }
RESHARPEN_INLINE f32x16& operator*=(f32x16& a, f32x16 b) { return a = a * b; }

// Maximum; b if either is NaN, so a NaN in the second argument is kept. Not every compiler turns the comparison into
// this instruction.
RESHARPEN_INLINE FloatRegister max_register(FloatRegister a, FloatRegister b) {
#if defined(__AVX512F__)
    return (FloatRegister)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (FloatRegister)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (FloatRegister)_mm_max_ps((__m128)a, (__m128)b);
#else
    return a > b ? a : b;
#endif
}
RESHARPEN_INLINE f32x16 max(f32x16 a, f32x16 b) { return map(max_register, a, b); }
RESHARPEN_INLINE f32x16 min(f32x16 a, f32x16 b) { return -max(-a, -b); }
RESHARPEN_INLINE f32x16 abs(f32x16 a) {
    return map([](FloatRegister x) { return (FloatRegister)((IntRegister)x & 0x7fffffff); }, a);
}

// ---- lanes chosen by a condition ----------------------------------------------------------------------------------

struct Mask {
    IntRegister reg[kPerVector];  // -1 where true, 0 where false
};

RESHARPEN_INLINE Mask operator>(f32x16 a, f32x16 b) {
    Mask y;
    RESHARPEN_UNROLL
    for (int i = 0; i < kPerVector; i++) y.reg[i] = a.reg[i] > b.reg[i];
    return y;
}

// x where the mask is true, y elsewhere; a NaN in the value not chosen has no effect.
RESHARPEN_INLINE f32x16 select(Mask mask, f32x16 x, f32x16 y) {
    f32x16 z;
    RESHARPEN_UNROLL
    for (int i = 0; i < kPerVector; i++) z.reg[i] = mask.reg[i] ? x.reg[i] : y.reg[i];
    return z;
}

// Bit i is set where lane i is true.
inline uint32_t bits(Mask mask) {
    int32_t lanes[kLanes];
    std::memcpy(lanes, mask.reg, sizeof lanes);
    uint32_t y = 0;
    for (int i = 0; i < kLanes; i++) y |= (lanes[i] & 1u) << i;
    return y;
}

inline Mask mask_of(uint32_t bits) {
    int32_t lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = -int32_t(bits >> i & 1);
    Mask y;
    std::memcpy(y.reg, lanes, sizeof y);
    return y;
}

// The lanes that are neither NaN nor infinite.
inline uint32_t finite(f32x16 x) { return bits(broadcast(std::numeric_limits<float>::infinity()) > abs(x)); }

// ---- functions ----------------------------------------------------------------------------------------------------

RESHARPEN_INLINE f32x16 sqrt(f32x16 a) {
    return map(
        [](FloatRegister x) -> FloatRegister {
#if defined(__AVX512F__)
            return (FloatRegister)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX__)
            return (FloatRegister)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__)
            return (FloatRegister)_mm_sqrt_ps((__m128)x);
#else
            FloatRegister y;
            for (int i = 0; i < kRegisterBytes / 4; i++) y[i] = __builtin_sqrtf(x[i]);
            return y;
#endif
        },
        a);
}

// 1 / x for a normal finite x, to 1 ulp: with AVX-512 the 14-bit approximation and a Newton step, four times as fast as
// a division.
RESHARPEN_INLINE f32x16 reciprocal(f32x16 a) {
#if defined(__AVX512F__)
    const __m512 x = (__m512)a.reg[0], y = _mm512_rcp14_ps(x);
    f32x16 z;
    z.reg[0] = (FloatRegister)_mm512_fmadd_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(1)), y);
    return z;
#else
    return broadcast(1) / a;
#endif
}

// x^(-1/2) for a normal x > 0; 0 at infinity.
RESHARPEN_INLINE f32x16 rsqrt(f32x16 a) {
#if defined(__AVX512F__)
    const __m512 x = (__m512)a.reg[0], y = _mm512_rsqrt14_ps(x);
    const __m512 residual = _mm512_fnmadd_ps(_mm512_mul_ps(x, y), y, _mm512_set1_ps(1));
    const __m512 newton = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(0.5f), y), residual, y);
    const __mmask16 below_infinity = _mm512_cmp_ps_mask(x, _mm512_set1_ps(INFINITY), _CMP_NEQ_UQ);  // true for NaN
    f32x16 z;
    z.reg[0] = (FloatRegister)_mm512_maskz_mov_ps(below_infinity, newton);
    return z;
#else
    return broadcast(1) / sqrt(a);
#endif
}

// 2^x for x <= 0, to 1.5 ulp; zero or 2^-126 from x = -126 down; NaN stays NaN.
//
// x = n + f with n the nearest integer. The polynomial is the minimax of 2^f on [-1/2, 1/2] in relative error, with
// p(0) = 1. Without an instruction that scales by 2^n, adding 1.5 * 2^23 puts n into the low bits of the mantissa, and
// a shift moves it to the exponent.
RESHARPEN_INLINE FloatRegister exp2_polynomial(FloatRegister f) {
    FloatRegister p = 0.00132647401f * f + 0.00967151299f;
    p = p * f + 0.0555073358f;
    p = p * f + 0.240222424f;
    p = p * f + 0.693147004f;
    return p * f + 1.0f;
}
RESHARPEN_INLINE f32x16 exp2_nonpositive(f32x16 a) {
    return map(
        [](FloatRegister x) -> FloatRegister {
#if defined(__AVX512F__)
            const __m512 n = _mm512_roundscale_ps((__m512)x, 0);
            return (FloatRegister)_mm512_scalef_ps((__m512)exp2_polynomial(x - (FloatRegister)n), n);
#else
            x = max_register(-126.0f - FloatRegister{}, x);
            const FloatRegister shifted = x + 12582912.0f;
            const FloatRegister p = exp2_polynomial(x - (shifted - 12582912.0f));
            return (FloatRegister)((UnsignedRegister)p +
                                   ((UnsignedRegister)shifted << 23));  // may wrap in unused lanes
#endif
        },
        a);
}
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// log2(x) for a normal x > 0, to 3e-7 + half an ulp.
//
// x = 2^n (1 + f) with f in [-1/4, 1/2): the polynomial is the minimax of log2(1 + f) / f times f, with an error of at
// most 5e-8.
RESHARPEN_INLINE f32x16 log2(f32x16 a) {
    return map(
        [](FloatRegister x) -> FloatRegister {
            const IntRegister n = ((IntRegister)x - 0x3f400000) >> 23;
            const FloatRegister f = (FloatRegister)((IntRegister)x - (n << 23)) - 1.0f;
            FloatRegister p = -0.0908790305f * f + 0.201280653f;
            p = p * f - 0.251942098f;
            p = p * f + 0.290806234f;
            p = p * f - 0.360261053f;
            p = p * f + 0.48080194f;
            p = p * f - 0.7213521f;
            p = p * f + 1.44269586f;
            return p * f + __builtin_convertvector(n, FloatRegister);
        },
        a);
}

template <int N>
RESHARPEN_INLINE f32x16 dot(const f32x16* a, const f32x16* b) {
    f32x16 even = a[0] * b[0], odd = broadcast(0);
    RESHARPEN_UNROLL
    for (int i = 1; i < N; i++) (i % 2 ? odd : even) += a[i] * b[i];
    return even + odd;
}

// ---- the processor's floating point mode --------------------------------------------------------------------------

// While this object lives subnormal numbers are flushed to zero: they are irrelevant here and take many cycles each.
class FlushSubnormals {
#if defined(__x86_64__)
    unsigned saved = _mm_getcsr();

  public:
    FlushSubnormals() { _mm_setcsr(saved | 0x8040); }
    ~FlushSubnormals() { _mm_setcsr(saved); }
#elif defined(__aarch64__)
    uint64_t saved;

  public:
    FlushSubnormals() {
        asm volatile("mrs %0, fpcr" : "=r"(saved));
        asm volatile("msr fpcr, %0" ::"r"(saved | uint64_t(1) << 24));
    }
    ~FlushSubnormals() { asm volatile("msr fpcr, %0" ::"r"(saved)); }
#endif
};

}  // namespace
