// The minimal transformer: quantities per token and pair of tokens, computed once per step; minimal.h has the formulas.
#pragma once

#include "matrix.h"
#include "minimal_layout.h"

namespace {

// ---- RMSNorm with one epsilon and one gain vector per model ---------------------------------------------------------

// r = (mean(x^2) + epsilon)^(-1/2), from the sum of squares.
template <int D>
RESHARPEN_INLINE f32x16 inverse_rms(f32x16 sum_of_squares, f32x16 epsilon) {
    return rsqrt((1.0f / D) * sum_of_squares + epsilon);
}

// The derivative by x_i, divided by x_i, given r dr: dr / dx_i = -r^3 x_i / D.
template <int D>
RESHARPEN_INLINE f32x16 d_inverse_rms(f32x16 r, f32x16 r_dr) {
    return (-1.0f / D) * (r * r * r_dr);
}

// y = x r gain; returns r, which the backward needs.
template <int D>
inline f32x16 rms_norm(const f32x16* x, const f32x16* gain, f32x16 epsilon, f32x16* y) {
    const f32x16 r = inverse_rms<D>(dot<D>(x, x), epsilon);
    for (int i = 0; i < D; i++) y[i] = x[i] * r * gain[i];
    return r;
}

// Adds to dgain; with kAdd also to dx, which may otherwise be dy.
//     dgain_i += x_i r dy_i          dx_i (+)= r gain_i dy_i - r^3 x_i / D * sum_k x_k gain_k dy_k
template <int D, bool kAdd>
inline void rms_norm_backward(const f32x16* x, const f32x16* gain, f32x16 r, const f32x16* dy, f32x16* dx,
                              f32x16* dgain) {
    f32x16 dr = broadcast(0);
    for (int i = 0; i < D; i++) dr += x[i] * gain[i] * dy[i];
    const f32x16 along_x = d_inverse_rms<D>(r, r * dr);
    for (int i = 0; i < D; i++) {
        const f32x16 d = dy[i];
        dgain[i] += x[i] * r * d;
        const f32x16 value = r * gain[i] * d + along_x * x[i];
        dx[i] = kAdd ? dx[i] + value : value;
    }
}

// ---- tokens ---------------------------------------------------------------------------------------------------------

// A variant and its algorithm; minimal.h explains subsets and forms.
struct Setup {
    MinimalLayout layout;
    Placement placement;
    AttentionKind attention;
    f32x16 epsilon;
    bool subsets, forms;

    Setup(Variant variant, const Hyperparameters<f32x16>& h, bool subsets, bool forms)
        : layout(variant), placement(variant.placement), attention(variant.attention), epsilon(h.rms_epsilon),
          subsets(subsets), forms(forms) {}

    bool by_size() const { return attention != AttentionKind::softmax; }  // whether weights depend on a set's size
    bool norm_after_residual() const { return placement.residual || placement.unembedding_in; }
    bool double_norm() const { return placement.residual && placement.unembedding_in; }
};

constexpr int kZ = V, kO = V + 1, kColumns = V + 1 + D;
constexpr int kStride = kColumns | 1;  // odd, to avoid cache conflicts between rows

// Quantities per token and pair of tokens.
struct Tokens {
    f32x16 ones[D];
    f32x16 x[V][D], r_embedding[V], h[V][D], r_in[V], q[V][K], k[V][K], v[V][DV], vo[V][D], vo_gained[V][D];
    f32x16 gain_final[D], u_gained[D][V], base[V][V], attention[V][V], value[V][kStride];
    f32x16 ssmax;  // its s
    const f32x16 *gain_out, *gain_1, *gain_2;  // of block_out, residual and unembedding_in; ones where absent

    Tokens() {
        for (f32x16& one : ones) one = broadcast(1);
    }
};

// Their gradients; for gains with a partial sum per last token.
struct TokenGradients {
    f32x16 x[V][D], h[V][D], q[V][K], k[V][K], v[V][DV], vo[V][D], vo_gained[V][D];
    f32x16 u_gained[D][V], base[V][V], attention[V][V], value[V][kStride];
    f32x16 ssmax, gain_out[V][D], gain_1[V][D];
};

inline void copy_row(const f32x16* from, f32x16* to) {
    for (int i = 0; i < D; i++) to[i] = from[i];
}

inline void add_rows(const f32x16 (*rows)[D], f32x16* sum) {
    for (int t = 0; t < V; t++)
        for (int i = 0; i < D; i++) sum[i] += rows[t][i];
}

inline void tokens_forward(const Setup& setup, const f32x16* theta, Tokens& at) {
    const MinimalLayout& layout = setup.layout;
    auto gain = [&](int where) { return where < 0 ? at.ones : theta + where; };
    at.gain_out = gain(layout.block_out), at.gain_1 = gain(layout.residual), at.gain_2 = gain(layout.unembedding_in);
    at.ssmax = setup.attention == AttentionKind::ssmax ? theta[layout.ssmax] : broadcast(1);
    for (int t = 0; t < V; t++) {
        copy_row(theta + t * D, at.x[t]);
        if (setup.placement.embedding_out)
            at.r_embedding[t] = rms_norm<D>(theta + t * D, theta + layout.embedding_out, setup.epsilon, at.x[t]);
        copy_row(at.x[t], at.h[t]);
        if (setup.placement.block_in)
            at.r_in[t] = rms_norm<D>(at.x[t], theta + layout.block_in, setup.epsilon, at.h[t]);
    }
    multiply(V, D, K, rows<D>(at.h[0]), rows<K>(theta + kWQ), {at.q[0], K, 1});
    multiply(V, D, K, rows<D>(at.h[0]), rows<K>(theta + kWK), {at.k[0], K, 1});
    multiply(V, D, DV, rows<D>(at.h[0]), rows<DV>(theta + kWV), {at.v[0], DV, 1});
    multiply(V, DV, D, rows<DV>(at.v[0]), rows<D>(theta + kWO), {at.vo[0], D, 1});
    for (int i = 0; i < D; i++) {
        at.gain_final[i] = at.gain_1[i] * at.gain_2[i];
        for (int w = 0; w < V; w++) at.u_gained[i][w] = at.gain_final[i] * theta[kU + i * V + w];
    }
    for (int j = 0; j < V; j++) {
        at.value[j][kZ] = broadcast(1);
        copy_row(at.vo[j], &at.value[j][kO]);
        for (int i = 0; i < D; i++) at.vo_gained[j][i] = at.gain_out[i] * at.vo[j][i];
    }
    multiply(V, D, V, rows<D>(at.x[0]), rows<V>(at.u_gained[0]), {at.base[0], V, 1});
    multiply(V, D, V, rows<D>(at.vo_gained[0]), rows<V>(at.u_gained[0]), {at.value[0], kStride, 1});
    // In base 2, for exp2.
    multiply(V, K, V, rows<K>(at.q[0]), rows<K>(at.k[0]).transposed(), {at.attention[0], V, 1});
    const float scale = kLog2E / std::sqrt(float(K));
    for (int t = 0; t < V; t++)
        for (int j = 0; j < V; j++) at.attention[t][j] = scale * at.attention[t][j];
}

// Set to zero what gradients are added to.
inline void clear_gradients(int size, TokenGradients& d, f32x16* gradient) {
    for (int i = 0; i < size; i++) gradient[i] = broadcast(0);
    d.ssmax = broadcast(0);
    clear(d.x), clear(d.base), clear(d.attention), clear(d.value), clear(d.gain_out), clear(d.gain_1);
    clear(d.vo), clear(d.vo_gained);
}

// u_gained = diag(g_1 g_2) U
inline void unembedding_backward(const Setup& setup, const f32x16* theta, const Tokens& at, const TokenGradients& d,
                                 f32x16* gradient) {
    const MinimalLayout& layout = setup.layout;
    for (int i = 0; i < D; i++) {
        f32x16 d_gain = broadcast(0);
        for (int w = 0; w < V; w++) {
            d_gain += d.u_gained[i][w] * theta[kU + i * V + w];
            gradient[kU + i * V + w] = at.gain_final[i] * d.u_gained[i][w];
        }
        if (setup.placement.residual) gradient[layout.residual + i] = d_gain * at.gain_2[i];
        if (setup.placement.unembedding_in) gradient[layout.unembedding_in + i] = d_gain * at.gain_1[i];
    }
    if (setup.placement.residual) add_rows(d.gain_1, gradient + layout.residual);
}

// y = h W: dW = h^T dy, dh += dy W^T
template <int N>
void linear_backward(const f32x16* theta, const f32x16* h, const f32x16* dy, int where, f32x16* d_h, f32x16* gradient) {
    multiply(D, V, N, rows<D>(h).transposed(), rows<N>(dy), {gradient + where, N, 1});
    multiply(V, N, D, rows<N>(dy), rows<N>(theta + where).transposed(), {d_h, D, 1}, true);
}

// From the gradients by h and x of one token to that of its embedding.
inline void embedding_backward(const Setup& setup, int t, const f32x16* theta, const Tokens& at, TokenGradients& d,
                               f32x16* gradient) {
    const MinimalLayout& layout = setup.layout;
    if (setup.placement.block_in)
        rms_norm_backward<D, true>(at.x[t], theta + layout.block_in, at.r_in[t], d.h[t], d.x[t],
                                   gradient + layout.block_in);
    else
        for (int i = 0; i < D; i++) d.x[t][i] += d.h[t][i];
    f32x16* d_e = gradient + t * D;
    if (setup.placement.embedding_out)
        rms_norm_backward<D, false>(theta + t * D, theta + layout.embedding_out, at.r_embedding[t], d.x[t], d_e,
                                    gradient + layout.embedding_out);
    else
        copy_row(d.x[t], d_e);
}

// From the gradients by base, value, attention, x and VO to those of the weights.
inline void tokens_backward(const Setup& setup, const f32x16* theta, const Tokens& at, TokenGradients& d,
                            f32x16* gradient) {
    // base = x u_gained; D = vo_gained u_gained
    multiply(V, V, D, rows<V>(d.base[0]), rows<V>(at.u_gained[0]).transposed(), {d.x[0], D, 1}, true);
    multiply(V, V, D, rows<kStride>(d.value[0]), rows<V>(at.u_gained[0]).transposed(), {d.vo_gained[0], D, 1}, true);
    multiply(D, V, V, rows<D>(at.x[0]).transposed(), rows<V>(d.base[0]), {d.u_gained[0], V, 1});
    multiply(D, V, V, rows<D>(at.vo_gained[0]).transposed(), rows<kStride>(d.value[0]), {d.u_gained[0], V, 1}, true);
    unembedding_backward(setup, theta, at, d, gradient);
    for (int j = 0; j < V; j++)
        for (int i = 0; i < D; i++) {
            d.gain_out[j][i] += at.vo[j][i] * d.vo_gained[j][i];
            d.vo[j][i] += d.value[j][kO + i] + at.gain_out[i] * d.vo_gained[j][i];
        }
    // VO = v W_O; q, k, v = h W
    multiply(V, D, DV, rows<D>(d.vo[0]), rows<D>(theta + kWO).transposed(), {d.v[0], DV, 1});
    multiply(DV, V, D, rows<DV>(at.v[0]).transposed(), rows<D>(d.vo[0]), {gradient + kWO, D, 1});
    multiply(V, V, K, rows<V>(d.attention[0]), rows<K>(at.k[0]), {d.q[0], K, 1});
    multiply(V, V, K, rows<V>(d.attention[0]).transposed(), rows<K>(at.q[0]), {d.k[0], K, 1});
    clear(d.h);
    linear_backward<K>(theta, at.h[0], d.q[0], kWQ, d.h[0], gradient);
    linear_backward<K>(theta, at.h[0], d.k[0], kWK, d.h[0], gradient);
    linear_backward<DV>(theta, at.h[0], d.v[0], kWV, d.h[0], gradient);
    for (int t = 0; t < V; t++) embedding_backward(setup, t, theta, at, d, gradient);
    if (setup.placement.block_out) add_rows(d.gain_out, gradient + setup.layout.block_out);
    if (setup.attention == AttentionKind::ssmax) gradient[setup.layout.ssmax] = d.ssmax;
}

}  // namespace
