// The minimal transformer: a state on its way from its sum of rows to the loss, and back; minimal.h has the formulas.
#pragma once

#include "minimal_attention.h"

namespace resharpen {

class MinimalStates : public MinimalAttention {
  protected:
    MinimalStates(Placement placement, bool subsets, const Hyperparameters<f32x16>& h)
        : MinimalAttention(placement, subsets, h) {
        clear(block);  // a z that no norm asks for stays zero
    }

    // One state on its way through the network. After `forward` sum, z, scaled hold activations; `backward` turns
    // sum into its gradient.
    struct State {
        f32x16* sum;            // [ T | Z | o ] = sum of weighted rows; o is not yet divided by Z
        f32x16 z[D];            // x_t + o_scale g_out o
        f32x16 scaled[V];       // B_t + o_scale T, the logits before r_1 r_2
        f32x16 d_logits[V];     // first the exponentials
        f32x16 inverse_z, r_o, o_scale, r_1, r_2, mean_o, z_squared, z_along_o, gained_squared, gained_along_o;
        f32x16 log2_scale, log2_shift, inverse_sum, d_r, d_o_scale, d_z_1, d_z_2, d_o;
    };

    State block[kBlock];
    f32x16 bits, rounded_off;  // the loss: what is in the sum so far, and what it has too much

    // Forward and backward of COUNT states, from sums to their gradients. Its parts are inlined: 2% faster.
    template <int COUNT>
    void train_block(int t, int i, const Minibatch<V>& batch, int first) {
        forward_block<COUNT>(t, i);
        add_loss<COUNT>(batch, first);
        logits_backward<COUNT>(t, batch, first);
        for (int b = 0; b < COUNT; b++) scalars_backward(block[b]);
        if (norm_after()) double_norm() ? norms_backward<COUNT, true>(t) : norms_backward<COUNT, false>(t);
    }

    template <int COUNT>
    void forward_block(int t, int i) {
        for (int b = 0; b < COUNT; b++) block[b].sum = sums[i + b];
        normalise<COUNT>(t);
        softmax<COUNT>(t);
    }

    // The two scalars 1/rms, on the attention's output and on the residual stream.
    template <int COUNT>
    RESHARPEN_INLINE void normalise(int t) {
        for (int b = 0; b < COUNT; b++) {
            State& s = block[b];
            s.o_scale = s.inverse_z = reciprocal(s.sum[kZ]);
            s.r_1 = s.r_2 = broadcast(1);
            if (placement.block_out) {
                s.mean_o = s.inverse_z * s.inverse_z * dot<D>(s.sum + kO, s.sum + kO);
                s.r_o = inverse_rms<D>(s.mean_o, epsilon);
                s.o_scale = s.r_o * s.inverse_z;
            }
        }
        if (!placement.residual && !placement.unembedding_in) return;
        for (int b = 0; b < COUNT; b++) {
            State& s = block[b];
            f32x16 squares[2] = {broadcast(0), broadcast(0)}, along_o[2] = {broadcast(0), broadcast(0)};
            RESHARPEN_UNROLL
            for (int i = 0; i < D; i++) {
                const f32x16 o = gain_out[i] * s.sum[kO + i];
                s.z[i] = x[t][i] + s.o_scale * o;
                squares[i % 2] += s.z[i] * s.z[i];
                along_o[i % 2] += s.z[i] * o;
            }
            s.z_squared = squares[0] + squares[1];
            s.z_along_o = along_o[0] + along_o[1];
            (placement.residual ? s.r_1 : s.r_2) = inverse_rms<D>(s.z_squared, epsilon);
            if (double_norm()) normalise_again(s);
        }
    }

    // The unembedding's norm after the residual's: 1 / rms(r_1 g_1 z).
    void normalise_again(State& s) {
        s.gained_squared = s.gained_along_o = broadcast(0);
        for (int i = 0; i < D; i++) {
            const f32x16 gained = gain_1[i] * s.z[i];
            s.gained_squared += gained * gained;
            s.gained_along_o += gained * gain_1[i] * (gain_out[i] * s.sum[kO + i]);
        }
        s.r_2 = inverse_rms<D>(s.r_1 * s.r_1 * s.gained_squared, epsilon);
    }

    // Exponentials of r_1 r_2 (B_t + o_scale T) less their maximum, and the inverse of their sum.
    template <int COUNT>
    RESHARPEN_INLINE void softmax(int t) {
        for (int b = 0; b < COUNT; b++) {
            State& s = block[b];
            f32x16 highest[2] = {broadcast(-INFINITY), broadcast(-INFINITY)};
            RESHARPEN_UNROLL
            for (int w = 0; w < V; w++) {
                s.scaled[w] = base[t][w] + s.o_scale * s.sum[w];
                highest[w % 2] = max(highest[w % 2], s.scaled[w]);
            }
            s.log2_scale = kLog2E * (s.r_1 * s.r_2);
            s.log2_shift = s.log2_scale * max(highest[0], highest[1]);
        }
        for (int b = 0; b < COUNT; b++) {
            State& s = block[b];
            f32x16 sum[2] = {broadcast(0), broadcast(0)};
            RESHARPEN_UNROLL
            for (int w = 0; w < V; w++) {
                s.d_logits[w] = exp2_nonpositive(s.log2_scale * s.scaled[w] - s.log2_shift);
                sum[w % 2] += s.d_logits[w];
            }
            s.inverse_sum = reciprocal(sum[0] + sum[1]);
        }
    }

    // 1/2 sum_w |p_w - p*_w|, p* uniform on the absent tokens
    f32x16 total_variation(const State& s, uint32_t set) const {
        const f32x16 uniform = broadcast(1.0f / float(V - __builtin_popcount(set)));
        f32x16 sum = broadcast(0);
        for (int w = 0; w < V; w++) {
            const f32x16 p = s.d_logits[w] * s.inverse_sum;
            sum += abs(set >> w & 1 ? p : p - uniform);
        }
        return 0.5f * sum;
    }

    // Minus log2 of the likelihood: weight (log2 sum_w e_w + shift) - scale sum_w counts_w scaled_w. What one addition
    // to the long sum rounds off goes into the next. Not a part of the backward's loop, which has no registers left.
    template <int COUNT>
    RESHARPEN_INLINE void add_loss(const Minibatch<V>& batch, int first) {
        f32x16 sum = broadcast(0);
        for (int b = 0; b < COUNT; b++) {
            const State& s = block[b];
            const auto& counted = batch.sorted(first + b);
            f32x16 chosen = broadcast(0);
            RESHARPEN_UNROLL
            for (int w = 0; w < V; w++) chosen += counted.counts[w] * s.scaled[w];
            sum += counted.weight * (s.log2_shift - log2(s.inverse_sum)) - s.log2_scale * chosen;
        }
        const f32x16 corrected = sum - rounded_off, longer = bits + corrected;
        rounded_off = (longer - bits) - corrected;
        bits = longer;
    }

    // d logits = weight p - counts, with logits = r_1 r_2 (B_t + o_scale T) on to B_t, T and the scalars.
    template <int COUNT>
    RESHARPEN_INLINE void logits_backward(int t, const Minibatch<V>& batch, int first) {
        for (int b = 0; b < COUNT; b++) {
            State& s = block[b];
            const auto& counted = batch.sorted(first + b);
            const f32x16 weight = counted.weight * s.inverse_sum, r = s.r_1 * s.r_2, d_T = r * s.o_scale;
            f32x16 along_logits[2] = {broadcast(0), broadcast(0)}, along_T[2] = {broadcast(0), broadcast(0)};
            RESHARPEN_UNROLL
            for (int w = 0; w < V; w++) {
                const f32x16 d = weight * s.d_logits[w] - broadcast(counted.counts[w]);
                along_logits[w % 2] += d * s.scaled[w];
                along_T[w % 2] += d * s.sum[w];
                s.d_logits[w] = d;
                s.sum[w] = d_T * d;
            }
            s.d_r = along_logits[0] + along_logits[1];
            s.d_o_scale = r * (along_T[0] + along_T[1]);
        }
        RESHARPEN_UNROLL
        for (int w = 0; w < V; w++) {
            f32x16 d = broadcast(0);
            RESHARPEN_UNROLL
            for (int b = 0; b < COUNT; b++) d += block[b].r_1 * block[b].r_2 * block[b].d_logits[w];
            d_base[t][w] += d;
        }
    }

    // Through the scalars: d z = (d_z_1 + d_z_2 g_1^2) z, d o = d_o o + .., and Z; o_scale = r_o / Z.
    RESHARPEN_INLINE void scalars_backward(State& s) {
        s.d_z_1 = s.d_z_2 = s.d_o = broadcast(0);
        if (double_norm()) {
            const f32x16 along = d_inverse_rms<D>(s.r_2, s.r_1 * s.d_r);
            s.d_z_2 = along * (s.r_1 * s.r_1);
            s.d_z_1 = d_inverse_rms<D>(s.r_1, s.r_2 * s.d_r + along * s.r_1 * s.gained_squared);
            s.d_o_scale += s.d_z_1 * s.z_along_o + s.d_z_2 * s.gained_along_o;
        } else if (placement.residual || placement.unembedding_in) {
            s.d_z_1 = d_inverse_rms<D>(s.r_1 * s.r_2, s.d_r);
            s.d_o_scale += s.d_z_1 * s.z_along_o;
        }
        f32x16 d_inverse_z = s.d_o_scale;
        if (placement.block_out) {
            const f32x16 along = d_inverse_rms<D>(s.r_o, s.inverse_z * s.d_o_scale);  // d (o / Z) = along o / Z
            d_inverse_z = s.r_o * s.d_o_scale + along * s.mean_o * s.sum[kZ];
            s.d_o = along * s.inverse_z * s.inverse_z;
        }
        s.sum[kZ] = -(s.inverse_z * s.inverse_z) * d_inverse_z;
    }

    // From the scalars to o, x_t and the gains: z = x_t + o_scale g_out o. Without a norm of z its gradient is zero.
    template <int COUNT, bool kDouble>
    void norms_backward(int t) {
        RESHARPEN_UNROLL
        for (int i = 0; i < D; i++) {
            f32x16 d_x_sum = broadcast(0), d_out_sum = broadcast(0), d_1_sum = broadcast(0);
            RESHARPEN_UNROLL
            for (int b = 0; b < COUNT; b++) {
                State& s = block[b];
                const f32x16 o = s.sum[kO + i];
                f32x16 d_z = s.d_z_1 * s.z[i];
                if constexpr (kDouble) {
                    const f32x16 d_gained = s.d_z_2 * gain_1[i] * s.z[i];
                    d_z += d_gained * gain_1[i];
                    d_1_sum += d_gained * s.z[i];
                }
                const f32x16 d_scaled = s.o_scale * d_z;
                d_x_sum += d_z;
                d_out_sum += d_scaled * o;
                s.sum[kO + i] = s.d_o * o + d_scaled * gain_out[i];
            }
            d_x[t][i] += d_x_sum;
            d_gain_out[t][i] += d_out_sum;
            if constexpr (kDouble) d_gain_1[t][i] += d_1_sum;
        }
    }
};

}  // namespace resharpen
