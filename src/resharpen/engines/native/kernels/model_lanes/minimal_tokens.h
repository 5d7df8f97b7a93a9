// The minimal transformer: what depends on one token alone, computed once a step; minimal.h has the formulas.
#pragma once

#include "matrix.h"
#include "minimal_layout.h"
#include "norm.h"

namespace resharpen {

class MinimalTokens {
  public:
    MinimalTokens(Variant variant, const Hyperparameters<f32x16>& h)
        : layout(variant), placement(variant.placement), attention_kind(variant.attention), epsilon(h.rms_epsilon) {
        for (f32x16& x : ones) x = broadcast(1);
    }

    MinimalLayout layout;

  protected:
    static constexpr int kZ = V, kO = V + 1, kColumns = V + 1 + D;
    static constexpr int kStride = kColumns | 1;  // odd, so that rows do not compete for the same lines of the cache

    Placement placement;
    AttentionKind attention_kind;
    f32x16 epsilon;

    f32x16 ones[D];
    f32x16 x[V][D], r_embedding[V], h[V][D], r_in[V], q[V][K], k[V][K], v[V][DV], vo[V][D], vo_gained[V][D];
    f32x16 gain_final[D], u_gained[D][V], base[V][V], attention[V][V], value[V][kStride];

    f32x16 d_x[V][D], d_h[V][D], d_q[V][K], d_k[V][K], d_v[V][DV], d_vo[V][D], d_vo_gained[V][D];
    f32x16 d_u_gained[D][V], d_base[V][V], d_attention[V][V], d_value[V][kStride];
    f32x16 ssmax, d_ssmax;  // its s
    f32x16 d_gain_out[V][D], d_gain_1[V][D];  // a partial sum for each last token

    bool norm_after_residual() const { return placement.residual || placement.unembedding_in; }
    bool double_norm() const { return placement.residual && placement.unembedding_in; }
    const f32x16* gain(const f32x16* theta, int where) const { return where < 0 ? ones : theta + where; }
    const f32x16 *gain_out, *gain_1;  // of block_out and residual; ones where absent

    void tokens_forward(const f32x16* theta) {
        gain_out = gain(theta, layout.block_out);
        gain_1 = gain(theta, layout.residual);
        ssmax = attention_kind == AttentionKind::ssmax ? theta[layout.ssmax] : broadcast(1);
        const f32x16* gain_2 = gain(theta, layout.unembedding_in);
        for (int t = 0; t < V; t++) {
            copy_row(theta + t * D, x[t]);
            if (placement.embedding_out)
                r_embedding[t] = rms_norm<D>(theta + t * D, theta + layout.embedding_out, epsilon, x[t]);
            copy_row(x[t], h[t]);
            if (placement.block_in) r_in[t] = rms_norm<D>(x[t], theta + layout.block_in, epsilon, h[t]);
        }
        multiply(V, D, K, rows<D>(h[0]), rows<K>(theta + kWQ), {q[0], K, 1});
        multiply(V, D, K, rows<D>(h[0]), rows<K>(theta + kWK), {k[0], K, 1});
        multiply(V, D, DV, rows<D>(h[0]), rows<DV>(theta + kWV), {v[0], DV, 1});
        multiply(V, DV, D, rows<DV>(v[0]), rows<D>(theta + kWO), {vo[0], D, 1});
        for (int i = 0; i < D; i++) {
            gain_final[i] = gain_1[i] * gain_2[i];
            for (int w = 0; w < V; w++) u_gained[i][w] = gain_final[i] * theta[kU + i * V + w];
        }
        for (int j = 0; j < V; j++) {
            value[j][kZ] = broadcast(1);
            copy_row(vo[j], &value[j][kO]);
            for (int i = 0; i < D; i++) vo_gained[j][i] = gain_out[i] * vo[j][i];
        }
        multiply(V, D, V, rows<D>(x[0]), rows<V>(u_gained[0]), {base[0], V, 1});
        multiply(V, D, V, rows<D>(vo_gained[0]), rows<V>(u_gained[0]), {value[0], kStride, 1});
        // In powers of two, so that the exponential is one of base two.
        multiply(V, K, V, rows<K>(q[0]), rows<K>(k[0]).transposed(), {attention[0], V, 1});
        const float scale = kLog2E / std::sqrt(float(K));
        for (int t = 0; t < V; t++)
            for (int j = 0; j < V; j++) attention[t][j] = scale * attention[t][j];
    }

    void clear_gradients(f32x16* gradient) {
        for (int i = 0; i < layout.size; i++) gradient[i] = broadcast(0);
        d_ssmax = broadcast(0);
        clear(d_x), clear(d_base), clear(d_attention), clear(d_value), clear(d_gain_out), clear(d_gain_1);
        clear(d_vo), clear(d_vo_gained);
    }

    // From the gradients of base, value, attention, x and VO to those of the weights.
    void tokens_backward(const f32x16* theta, f32x16* gradient) {
        // base = x u_gained; D = vo_gained u_gained
        multiply(V, V, D, rows<V>(d_base[0]), rows<V>(u_gained[0]).transposed(), {d_x[0], D, 1}, true);
        multiply(V, V, D, rows<kStride>(d_value[0]), rows<V>(u_gained[0]).transposed(), {d_vo_gained[0], D, 1}, true);
        multiply(D, V, V, rows<D>(x[0]).transposed(), rows<V>(d_base[0]), {d_u_gained[0], V, 1});
        multiply(D, V, V, rows<D>(vo_gained[0]).transposed(), rows<kStride>(d_value[0]), {d_u_gained[0], V, 1}, true);
        unembedding_backward(theta, gradient);
        for (int j = 0; j < V; j++)
            for (int i = 0; i < D; i++) {
                d_gain_out[j][i] += vo[j][i] * d_vo_gained[j][i];
                d_vo[j][i] += d_value[j][kO + i] + gain_out[i] * d_vo_gained[j][i];
            }
        // VO = v W_O; q, k, v = h W
        multiply(V, D, DV, rows<D>(d_vo[0]), rows<D>(theta + kWO).transposed(), {d_v[0], DV, 1});
        multiply(DV, V, D, rows<DV>(v[0]).transposed(), rows<D>(d_vo[0]), {gradient + kWO, D, 1});
        multiply(V, V, K, rows<V>(d_attention[0]), rows<K>(k[0]), {d_q[0], K, 1});
        multiply(V, V, K, rows<V>(d_attention[0]).transposed(), rows<K>(q[0]), {d_k[0], K, 1});
        clear(d_h);
        linear_backward<K>(theta, gradient, kWQ, d_q[0]);
        linear_backward<K>(theta, gradient, kWK, d_k[0]);
        linear_backward<DV>(theta, gradient, kWV, d_v[0]);
        for (int t = 0; t < V; t++) embedding_backward(t, theta, gradient);
        if (placement.block_out) add_rows(d_gain_out, gradient + layout.block_out);
        if (attention_kind == AttentionKind::ssmax) gradient[layout.ssmax] = d_ssmax;
    }

    // u_gained = diag(g_1 g_2) U
    void unembedding_backward(const f32x16* theta, f32x16* gradient) {
        const f32x16* gain_2 = gain(theta, layout.unembedding_in);
        for (int i = 0; i < D; i++) {
            f32x16 d_gain = broadcast(0);
            for (int w = 0; w < V; w++) {
                d_gain += d_u_gained[i][w] * theta[kU + i * V + w];
                gradient[kU + i * V + w] = gain_final[i] * d_u_gained[i][w];
            }
            if (placement.residual) gradient[layout.residual + i] = d_gain * gain_2[i];
            if (placement.unembedding_in) gradient[layout.unembedding_in + i] = d_gain * gain_1[i];
        }
        if (placement.residual) add_rows(d_gain_1, gradient + layout.residual);
    }

    static void copy_row(const f32x16* from, f32x16* to) {
        for (int i = 0; i < D; i++) to[i] = from[i];
    }

    static void add_rows(const f32x16 (*rows)[D], f32x16* sum) {
        for (int t = 0; t < V; t++)
            for (int i = 0; i < D; i++) sum[i] += rows[t][i];
    }

    // y = h W: dW = h^T dy, dh += dy W^T
    template <int N>
    void linear_backward(const f32x16* theta, f32x16* gradient, int where, const f32x16* dy) {
        multiply(D, V, N, rows<D>(h[0]).transposed(), rows<N>(dy), {gradient + where, N, 1});
        multiply(V, N, D, rows<N>(dy), rows<N>(theta + where).transposed(), {d_h[0], D, 1}, true);
    }

    void embedding_backward(int t, const f32x16* theta, f32x16* gradient) {
        if (placement.block_in)
            rms_norm_backward<D, true>(x[t], theta + layout.block_in, r_in[t], d_h[t], d_x[t],
                                       gradient + layout.block_in);
        else
            for (int i = 0; i < D; i++) d_x[t][i] += d_h[t][i];
        f32x16* d_e = gradient + t * D;
        if (placement.embedding_out)
            rms_norm_backward<D, false>(theta + t * D, theta + layout.embedding_out, r_embedding[t], d_x[t], d_e,
                                        gradient + layout.embedding_out);
        else
            copy_row(d_x[t], d_e);
    }
};

}  // namespace resharpen
