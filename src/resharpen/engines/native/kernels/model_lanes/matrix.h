// Products of small matrices whose elements are vectors: sixteen models multiply their matrices at once.
#pragma once

#include "../vector.h"

namespace {

// A matrix with arbitrary strides, so that transposing exchanges the strides.
template <class T>
struct View {
    T* data;
    int row_stride, column_stride;
    RESHARPEN_INLINE T& operator()(int i, int j) const { return data[i * row_stride + j * column_stride]; }
    View transposed() const { return {data, column_stride, row_stride}; }
};
using Matrix = View<f32x16>;
using ConstMatrix = View<const f32x16>;

template <int COLUMNS>
ConstMatrix rows(const f32x16* data) {
    return {data, COLUMNS, 1};
}

// A tile of C stays in registers while the inner index runs: 16 accumulators for 8 loads with 32 registers.
constexpr int kTile = kPerVector == 1 ? 4 : 2;

template <int ROWS, int COLUMNS>
RESHARPEN_INLINE void multiply_tile(int inner, ConstMatrix A, ConstMatrix B, Matrix C, bool add) {
    f32x16 sum[ROWS][COLUMNS];
    RESHARPEN_UNROLL
    for (int i = 0; i < ROWS; i++) {
        RESHARPEN_UNROLL
        for (int j = 0; j < COLUMNS; j++) sum[i][j] = add ? C(i, j) : broadcast(0);
    }
    for (int k = 0; k < inner; k++) {
        f32x16 b[COLUMNS];
        RESHARPEN_UNROLL
        for (int j = 0; j < COLUMNS; j++) b[j] = B(k, j);
        RESHARPEN_UNROLL
        for (int i = 0; i < ROWS; i++) {
            const f32x16 a = A(i, k);
            RESHARPEN_UNROLL
            for (int j = 0; j < COLUMNS; j++) sum[i][j] += a * b[j];
        }
    }
    RESHARPEN_UNROLL
    for (int i = 0; i < ROWS; i++) {
        RESHARPEN_UNROLL
        for (int j = 0; j < COLUMNS; j++) C(i, j) = sum[i][j];
    }
}

template <int ROWS>
inline void multiply_rows(int inner, int columns, ConstMatrix A, ConstMatrix B, Matrix C, bool add) {
    int j = 0;
    auto from = [&](int j) { return ConstMatrix{&B(0, j), B.row_stride, B.column_stride}; };
    auto to = [&](int j) { return Matrix{&C(0, j), C.row_stride, C.column_stride}; };
    for (; j + kTile <= columns; j += kTile) multiply_tile<ROWS, kTile>(inner, A, from(j), to(j), add);
    for (; j < columns; j++) multiply_tile<ROWS, 1>(inner, A, from(j), to(j), add);
}

// C = A B, or C += A B; A is [n_rows, inner], B is [inner, n_columns].
inline __attribute__((noinline)) void multiply(int n_rows, int inner, int n_columns, ConstMatrix A, ConstMatrix B,
                                               Matrix C, bool add = false) {
    int i = 0;
    auto from = [&](int i) { return ConstMatrix{&A(i, 0), A.row_stride, A.column_stride}; };
    auto to = [&](int i) { return Matrix{&C(i, 0), C.row_stride, C.column_stride}; };
    for (; i + kTile <= n_rows; i += kTile) multiply_rows<kTile>(inner, n_columns, from(i), B, to(i), add);
    for (; i < n_rows; i++) multiply_rows<1>(inner, n_columns, from(i), B, to(i), add);
}

}  // namespace
