// Products of one model's matrices: a vector is sixteen neighboring columns.
//
// One register-blocked kernel computes all: C (+)= A B, where A is read by element, so with arbitrary strides (a
// transpose exchanges them), and B and C by vectors, so with contiguous rows.
#pragma once

#include <cstddef>

#include "../vector.h"

namespace {

// A(i, k) = data[i * row + k * column].
struct Left {
    const float* data;
    std::ptrdiff_t row, column;
    Left transposed() const { return {data, column, row}; }
};

// Columns (in vectors) and rows of C in registers: 24 sums, 4 vectors of B and one of A in the 32 registers of AVX-512;
// 12, 2 and 1 in the 16 of AVX; 20 and 4 in the 32 of NEON; 12 and 4 in the 16 of SSE. A narrow C has more rows, as far
// as the addresses of A fit.
constexpr int kPanel = kPerVector == 1 ? 4 : 1, kTall = kPerVector < 4 ? 6 : kRegisters == 32 ? 5 : 3;
constexpr int kPanelColumns = kPanel * kLanes;

// B(k, j) = data[j / kPanelColumns * panel + k * row + j % kPanelColumns]: row-major if panel = kPanelColumns, or
// packed by panels, which avoids cache conflicts of large strides.
struct Right {
    const float* data;
    std::ptrdiff_t row, panel;
};
inline Right row_major(const float* data, std::ptrdiff_t row) { return {data, row, kPanelColumns}; }

template <int R, int C, bool kUnitRow>
RESHARPEN_INLINE void gemm_tile(int inner, Left a, const float* b, std::ptrdiff_t b_row, float* c, std::ptrdiff_t c_row,
                                bool add) {
    f32x16 sum[R][C];
    RESHARPEN_UNROLL
    for (int i = 0; i < R; i++) {
        RESHARPEN_UNROLL
        for (int j = 0; j < C; j++) sum[i][j] = broadcast(0);
    }
    const float* a_k = a.data;
    const std::ptrdiff_t row = kUnitRow ? 1 : a.row, column = kUnitRow ? a.column : 1;
#pragma GCC unroll 2
    for (int k = 0; k < inner; k++, a_k += column, b += b_row) {
        f32x16 b_k[C];
        RESHARPEN_UNROLL
        for (int j = 0; j < C; j++) b_k[j] = load(b + j * kLanes);
        RESHARPEN_UNROLL
        for (int i = 0; i < R; i++) {
            const f32x16 x = broadcast(a_k[i * row]);
            RESHARPEN_UNROLL
            for (int j = 0; j < C; j++) sum[i][j] += x * b_k[j];
        }
    }
    RESHARPEN_UNROLL
    for (int i = 0; i < R; i++) {
        RESHARPEN_UNROLL
        for (int j = 0; j < C; j++) {
            float* at = c + i * c_row + j * kLanes;
            store(at, add ? load(at) + sum[i][j] : sum[i][j]);
        }
    }
}

template <int C, bool kUnitRow>
__attribute__((noinline)) void gemm_panel(int rows, int inner, Left a, const float* b, std::ptrdiff_t b_row, float* c,
                                          std::ptrdiff_t c_row, bool add) {
    constexpr int kRows = kPerVector > 1 || C == kPanel ? kTall : C == 1 && kUnitRow ? 16 : 12;
    auto next = [&](int n) { rows -= n, a.data += n * (kUnitRow ? 1 : a.row), c += n * c_row; };
    for (; rows >= kRows; next(kRows)) gemm_tile<kRows, C, kUnitRow>(inner, a, b, b_row, c, c_row, add);
    if (kRows > 8 && rows >= 8) gemm_tile<8, C, kUnitRow>(inner, a, b, b_row, c, c_row, add), next(8);
    if (rows >= 4) gemm_tile<4, C, kUnitRow>(inner, a, b, b_row, c, c_row, add), next(4);
    if (rows >= 2) gemm_tile<2, C, kUnitRow>(inner, a, b, b_row, c, c_row, add), next(2);
    if (rows >= 1) gemm_tile<1, C, kUnitRow>(inner, a, b, b_row, c, c_row, add), next(1);
}

constexpr int kInner = 128;  // rows of B at a time: a panel of them stays in the first-level cache

template <bool kUnitRow>
inline void gemm_strided(int rows, int inner, int vectors, Left a, Right b, float* c, std::ptrdiff_t c_row, bool add) {
    for (int k = 0; k < inner; k += kInner) {
        const int n = inner - k < kInner ? inner - k : kInner;
        const Left a_k{a.data + k * (kUnitRow ? a.column : 1), a.row, a.column};
        const float* b_k = b.data + k * b.row;
        float* c_j = c;
        int j = 0;
        for (; j + kPanel <= vectors; j += kPanel, b_k += b.panel, c_j += kPanelColumns)
            gemm_panel<kPanel, kUnitRow>(rows, n, a_k, b_k, b.row, c_j, c_row, add || k > 0);
        if (kPanel > 2 && j + 2 <= vectors) {
            gemm_panel<2, kUnitRow>(rows, n, a_k, b_k, b.row, c_j, c_row, add || k > 0);
            j += 2, b_k += 2 * kLanes, c_j += 2 * kLanes;
        }
        if (j < vectors) gemm_panel<1, kUnitRow>(rows, n, a_k, b_k, b.row, c_j, c_row, add || k > 0);
    }
}

// C = A B, or C += A B; A is [rows, inner], B is [inner, 16 * vectors]. One of A's strides is 1.
inline void gemm(int rows, int inner, int vectors, Left a, Right b, float* c, std::ptrdiff_t c_row, bool add = false) {
    a.column == 1 ? gemm_strided<false>(rows, inner, vectors, a, b, c, c_row, add)
                  : gemm_strided<true>(rows, inner, vectors, a, b, c, c_row, add);
}

// The same where A is [rows, 16] and C one vector wide, with strides that the compiler knows: B stays in registers, and
// a multiplication has one operand to load.
template <int R, int A_ROW, int C_ROW>
RESHARPEN_INLINE void thin_tile(const float* a, const f32x16* b, float* c, bool add) {
    f32x16 sum[R];
    RESHARPEN_UNROLL
    for (int i = 0; i < R; i++) sum[i] = broadcast(0);
    RESHARPEN_UNROLL
    for (int k = 0; k < kLanes; k++) {
        RESHARPEN_UNROLL
        for (int i = 0; i < R; i++) sum[i] += broadcast(a[i * A_ROW + k]) * b[k];
    }
    RESHARPEN_UNROLL
    for (int i = 0; i < R; i++) store(c + i * C_ROW, add ? load(c + i * C_ROW) + sum[i] : sum[i]);
}

template <int A_ROW, int B_ROW, int C_ROW>
__attribute__((noinline)) void thin_gemm(int rows, const float* a, const float* b, float* c, bool add) {
    if (kPerVector > 1)
        return gemm(rows, kLanes, 1, {a, A_ROW, 1}, row_major(b, B_ROW), c, C_ROW, add);  // too few registers
    f32x16 b_k[kLanes];
    RESHARPEN_UNROLL
    for (int k = 0; k < kLanes; k++) b_k[k] = load(b + k * B_ROW);
    for (; rows >= 8; rows -= 8, a += 8 * A_ROW, c += 8 * C_ROW) thin_tile<8, A_ROW, C_ROW>(a, b_k, c, add);
    for (; rows > 0; rows--, a += A_ROW, c += C_ROW) thin_tile<1, A_ROW, C_ROW>(a, b_k, c, add);
}

#if defined(__AVX__) && !defined(__AVX512F__)
// Transpose of an 8 x 8 block; halves of rows i and i + 4 are combined when loaded.
RESHARPEN_INLINE void transpose_eight(const float* x, std::ptrdiff_t x_row, float* y, std::ptrdiff_t y_row) {
    for (int half = 0; half < 8; half += 4, x += 4, y += 4 * y_row) {
        __m256 r[4];
        for (int i = 0; i < 4; i++)
            r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x + i * x_row)),
                                        _mm_loadu_ps(x + (i + 4) * x_row), 1);
        const __m256 low = _mm256_unpacklo_ps(r[0], r[1]), low2 = _mm256_unpacklo_ps(r[2], r[3]);
        const __m256 high = _mm256_unpackhi_ps(r[0], r[1]), high2 = _mm256_unpackhi_ps(r[2], r[3]);
        _mm256_storeu_ps(y, _mm256_shuffle_ps(low, low2, 0x44));
        _mm256_storeu_ps(y + y_row, _mm256_shuffle_ps(low, low2, 0xee));
        _mm256_storeu_ps(y + 2 * y_row, _mm256_shuffle_ps(high, high2, 0x44));
        _mm256_storeu_ps(y + 3 * y_row, _mm256_shuffle_ps(high, high2, 0xee));
    }
}
#endif

// Transpose of a 16 x 16 block.
RESHARPEN_INLINE void transpose_block(const float* x, std::ptrdiff_t x_row, float* y, std::ptrdiff_t y_row) {
#if defined(__AVX512F__)
    __m512 r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(x + i * x_row);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            t[i + j] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0x88);
            t[i + j + 4] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        _mm512_storeu_ps(y + j * y_row, _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88));
        _mm512_storeu_ps(y + (j + 8) * y_row, _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd));
    }
#elif defined(__AVX__)
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 16; j += 8) transpose_eight(x + i * x_row + j, x_row, y + j * y_row + i, y_row);
#else
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) y[j * y_row + i] = x[i * x_row + j];
#endif
}

}  // namespace
