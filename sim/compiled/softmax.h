// SOFTMAX and NORMALISE, with the numerics of `weft.sim.golden.vector`.
#pragma once

#include "columns.h"

namespace weft {

class SoftmaxUnit {
public:
    template <int N>
    bool softmax(State& s, const Softmax& op) {
        const int64_t rows = op.oy * op.ox;
        if ((op.first && op.final) || !columns_.read<N>(s, op.params) || !find_outputs(s, op)) return false;
        if (!addresses(alignments_, op.alignment, {op.ob, op.alignment_ob}, {op.oy, op.alignment_oy},
                       {op.ox, op.alignment_ox}, s.alignment_count))
            return false;
        if (!addresses(states_, op.state, {1, 0}, {op.oy, op.state_oy}, {op.ox, op.state_ox}, s.state_count) ||
            !distinct())
            return false;
        const int64_t start = op.relative ? int64_t(s.bases[op.register_]) : 0;
        const int64_t length = int16_of(op.length + start), diagonal = int16_of(op.diagonal + start);
        m_.resize(size_t(rows)), sums_.resize(size_t(rows));
        for (int64_t row = 0; row < rows; row++) {
            m_[size_t(row)] = op.first ? LOWEST : s.maxima[states_[size_t(row)]];
            sums_[size_t(row)] = op.first ? 0 : s.sums[states_[size_t(row)]];
        }
        shifts_.resize(size_t(op.ob * rows));
        for (int64_t group = 0; group < op.ob; group++)
            for (int64_t row = 0; row < rows; row++) {
                const int64_t place = group * rows + row;
                int64_t valid = length - group * N;  // valid columns at the start of this group
                if (op.causal) valid = std::min(valid, diagonal + row % op.ox + 1 - group * N);
                valid = clamped(valid, 0, N);
                const int8_t* bytes = s.scratchpad + int64_t(sources_[size_t(place)]) * N;
                const int32_t* words = s.accumulator + int64_t(sources_[size_t(place)]) * N;
                const auto [e, total] = op.source ? probabilities<N>(s, bytes, valid, results_.data() + place * N)
                                                  : probabilities<N>(s, words, valid, results_.data() + place * N);
                shifts_[size_t(place)] = op.final ? int32_t(clamped(m_[size_t(row)] - e, 0, SHIFT_MOST))
                                                  : update(m_[size_t(row)], sums_[size_t(row)], e, total);
            }
        for (int64_t place = 0; place < op.ob * rows; place++)
            s.alignments[alignments_[size_t(place)]] = shifts_[size_t(place)];
        for (int64_t row = 0; row < rows && !op.final; row++) {
            s.maxima[states_[size_t(row)]] = int32_t(m_[size_t(row)]);
            s.sums[states_[size_t(row)]] = sums_[size_t(row)];
        }
        write<N>(s);
        return true;
    }

    template <int N>
    bool normalise(State& s, const Normalise& op) {
        if (!find_outputs(s, op)) return false;
        if (op.scaled && !addresses(alignments_, op.alignment, {op.ob, op.alignment_ob}, {op.oy, op.alignment_oy},
                                    {op.ox, op.alignment_ox}, s.alignment_count))
            return false;
        if (!addresses(states_, op.state, {1, 0}, {op.ob, op.state_ob}, {op.oy, op.state_oy}, s.state_count))
            return false;
        const int32_t more = op.source && s.wide_activations ? 128 : 0;
        for (size_t place = 0; place < targets_.size(); place++) {
            const int64_t sum = s.sums[states_[place / size_t(op.ox)]], bits = bit_length(uint64_t(sum));
            const int64_t top = (sum << std::max<int64_t>(17 - bits, 0)) >> std::max<int64_t>(bits - 17, 0);
            const int64_t r = sum ? std::min<int64_t>((op.scale << 16) / top, 65535) : 0;
            const int64_t z = op.v_zero * rsh(sum, 8);
            const int64_t aligned = op.scaled ? s.alignments[alignments_[place]] : 0;
            const int64_t shift = clamped(bits + op.exponent + aligned, 0, 63);
            const int64_t source = int64_t(sources_[place]) * N;
            int32_t elements[N];
            if (op.source)
                for (int k = 0; k < N; k++) elements[k] = s.scratchpad[source + k] + more;
            else
                std::memcpy(elements, s.accumulator + source, sizeof elements);
            int8_t* result = results_.data() + place * N;
            for (int k = 0; k < N; k++) {
                const int64_t quotient = round_half_even(int64_t(int32_t(elements[k] - z)) * r, shift);
                result[k] = int8_t(clamped(quotient + op.zero, op.low, op.high));
            }
        }
        write<N>(s);
        return true;
    }

private:
    static constexpr int64_t OCTAVE = 128, LOWEST = -256, REACH = 2048, SHIFT_MOST = 31;
    struct Group {
        int64_t exponent, total;
    };
    Columns columns_;
    std::vector<int32_t> targets_, sources_, alignments_, states_, seen_, shifts_;
    std::vector<int64_t> m_, sums_;
    std::vector<int8_t> results_;

    template <class Op>
    bool find_outputs(const State& s, const Op& op) {
        const int64_t size = op.source ? s.scratchpad_size : s.accumulator_size;
        if (!addresses(sources_, op.src, {op.ob, op.src_ob}, {op.oy, op.src_oy}, {op.ox, op.src_ox}, size) ||
            !addresses(targets_, op.dst, {op.ob, op.dst_ob}, {op.oy, op.dst_oy}, {op.ox, op.dst_ox}, s.scratchpad_size))
            return false;
        results_.resize(targets_.size() * size_t(s.n));
        return true;
    }

    bool distinct() {
        seen_ = states_;
        std::sort(seen_.begin(), seen_.end());
        return std::adjacent_find(seen_.begin(), seen_.end()) == seen_.end();
    }

    static int64_t int16_of(int64_t value) { return clamped(int32_t(value), INT16_MIN, INT16_MAX); }

    // Computes the stored probabilities of a group whose first `valid` columns are valid.
    template <int N, class Source>
    Group probabilities(const State& s, const Source* scores, int64_t valid, int8_t* result) const {
        int64_t y[N], top = LOWEST * OCTAVE, total = 0;
        for (int k = 0; k < N; k++) {
            const int64_t product = int64_t(int32_t(scores[k]) + columns_.bias[k]) * columns_.mantissa[k];
            y[k] = clamped(columns_.rounded(product, k), INT16_MIN, INT16_MAX);
        }
        for (int64_t k = 0; k < valid; k++) top = std::max(top, y[k]);
        const int64_t e = (top + OCTAVE - 1) >> 7, step = REACH / s.table_depth;
        for (int64_t k = 0; k < N; k++) {
            const int64_t distance = k < valid ? OCTAVE * e - y[k] : REACH;
            const int64_t p = distance < REACH ? s.table[distance / step] : 0;
            total += p;
            result[k] = int8_t(p - (s.wide_activations ? 128 : 0));
        }
        return {e, total};
    }

    // Updates a row's state by a group, and returns the group's alignment.
    static int32_t update(int64_t& m, int64_t& sum, int64_t e, int64_t total) {
        const int64_t largest = std::max(m, e);
        const int64_t u = std::min(largest - m, SHIFT_MOST), v = std::min(largest - e, SHIFT_MOST);
        m = largest, sum = (rsh(sum, u) + rsh(256 * total, v)) & 0xFFFFFFFF;
        return int32_t(u - v);
    }

    template <int N>
    void write(State& s) const {
        for (size_t place = 0; place < targets_.size(); place++)
            std::memcpy(s.scratchpad + int64_t(targets_[place]) * N, results_.data() + place * N, N);
    }
};

}  // namespace weft
