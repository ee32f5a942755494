// VEC: requantises, adds, pools, and looks up.
#pragma once

#include "columns.h"

namespace weft {

enum Reduction { REDUCE_NONE, REDUCE_MAX, REDUCE_SUM };  // `weft.hdl.isa.Reduce`

class Vector {
public:
    template <int N>
    bool vec(State& s, const Vec& op) {
        if (op.reduce > REDUCE_SUM || op.b_mantissa >> s.mantissa_bits || !columns_.read<N>(s, op.params)) return false;
        if (op.multiply && !(op.add && op.source && op.reduce == REDUCE_NONE)) return false;
        if (op.lookup && op.table >= s.lookup_tables) return false;
        const int64_t outputs = op.ob * op.oy * op.ox, size = s.scratchpad_size;
        if (!addresses(targets_, op.dst, {op.ob, op.dst_ob}, {op.oy, op.dst_oy}, {op.ox, op.dst_ox}, size))
            return false;
        if (op.add && !addresses(others_, op.b, {op.ob, op.b_ob}, {op.oy, op.b_oy}, {op.ox, op.b_ox}, size))
            return false;
        if (!reaches(s, op)) return false;
        results_.resize(size_t(outputs * N));
        int64_t output = 0;
        for (int64_t block = 0; block < op.ob; block++)
            for (int64_t y = 0; y < op.oy; y++)
                for (int64_t x = 0; x < op.ox; x++, output++) {
                    int32_t value[N];
                    const Output at{block * op.src_ob + y * op.src_oy + x * op.src_ox + op.src, op.y + y * op.y_oy,
                                    op.x + x * op.x_ox};
                    if (op.source) reduce<N>(s, op, at, s.scratchpad, value);
                    else reduce<N>(s, op, at, s.accumulator, value);
                    const int8_t* other = op.add ? s.scratchpad + int64_t(others_[size_t(output)]) * N : nullptr;
                    requantise<N>(op, value, other, results_.data() + output * N);
                }
        const int8_t* table = s.lookup + op.table * 256 + 128;
        for (output = 0; output < outputs; output++) {
            int8_t* result = results_.data() + output * N;
            if (op.lookup)
                for (int k = 0; k < N; k++) result[k] = table[result[k]];
            std::memcpy(s.scratchpad + int64_t(targets_[size_t(output)]) * N, result, N);
        }
        return true;
    }

private:
    struct Output {
        int64_t address, y, x;  // of its first element
    };
    std::vector<int32_t> targets_, others_;
    std::vector<int8_t> results_;
    Columns columns_;
    bool bounded_ = false;

    static int64_t size_of_source(const State& s, const Vec& op) {
        return op.source ? s.scratchpad_size : s.accumulator_size;
    }
    // Returns the first iteration to read: without a reduction, only the last one counts.
    static int64_t first_of(const Vec& op, int64_t count) { return op.reduce == REDUCE_NONE ? count - 1 : 0; }

    // Returns true if all elements with coordinates in range are in memory. Sets `bounded_` if any are out of range.
    bool reaches(const State& s, const Vec& op) {
        const Span y({{op.oy, op.y_oy}, {op.ry, op.y_ry}}), x({{op.ox, op.x_ox}, {op.rx, op.x_rx}});
        bounded_ = !y.inside(op.y, std::min<int64_t>(op.h, 0x8000)) || !x.inside(op.x, std::min<int64_t>(op.w, 0x8000));
        const Span all({{op.ob, op.src_ob}, {op.oy, op.src_oy}, {op.ox, op.src_ox}, {op.ry, op.src_ry},
                        {op.rx, op.src_rx}});
        if (all.inside(op.src, size_of_source(s, op))) return true;
        for (int64_t block = 0; block < op.ob; block++)
            for (int64_t y0 = 0; y0 < op.oy; y0++)
                for (int64_t x0 = 0; x0 < op.ox; x0++) {
                    const Output at{block * op.src_ob + y0 * op.src_oy + x0 * op.src_ox + op.src, op.y + y0 * op.y_oy,
                                    op.x + x0 * op.x_ox};
                    for (int64_t ry = first_of(op, op.ry); ry < op.ry; ry++)
                        for (int64_t rx = first_of(op, op.rx); rx < op.rx; rx++)
                            if (element(op, at, ry, rx) >= size_of_source(s, op)) return false;
                }
        return true;
    }

    // Returns the address of an element, or -1 if its coordinates are out of range.
    int64_t element(const Vec& op, const Output& at, int64_t ry, int64_t rx) const {
        if (bounded_ && !(within(at.y + ry * op.y_ry, op.h) && within(at.x + rx * op.x_rx, op.w))) return -1;
        return (at.address + ry * op.src_ry + rx * op.src_rx) & 0xFFFF;
    }

    template <int N, class Source>
    void reduce(const State&, const Vec& op, const Output& at, const Source* memory, int32_t* value) const {
        const int32_t outside = op.reduce == REDUCE_MAX ? INT32_MIN : int32_t(op.pad);
        for (int k = 0; k < N; k++) value[k] = op.reduce == REDUCE_MAX ? INT32_MIN : 0;
        for (int64_t ry = first_of(op, op.ry); ry < op.ry; ry++)
            for (int64_t rx = first_of(op, op.rx); rx < op.rx; rx++) {
                const int64_t address = element(op, at, ry, rx);
                if (address < 0) {
                    if (op.reduce != REDUCE_MAX)
                        for (int k = 0; k < N; k++) value[k] += outside;
                } else if (op.reduce == REDUCE_MAX) {
                    for (int k = 0; k < N; k++) value[k] = std::max(value[k], int32_t(memory[address * N + k]));
                } else {
                    for (int k = 0; k < N; k++) value[k] += int32_t(memory[address * N + k]);
                }
            }
    }

    // Loops without conditions on local variables, so that compilers vectorise them.
    template <int N>
    void requantise(const Vec& op, int32_t* value, const int8_t* other, int8_t* result) const {
        const int64_t zero = op.zero, low = op.low, high = op.high;
        int32_t second[N] = {};
        int64_t p[N];
        if (other)
            for (int k = 0; k < N; k++) second[k] = other[k] - int32_t(op.b_zero);
        if (op.multiply)
            for (int k = 0; k < N; k++) value[k] = (value[k] - int32_t(op.pad)) * second[k];
        for (int k = 0; k < N; k++) p[k] = int64_t(value[k] + columns_.bias[k]) * columns_.mantissa[k];
        if (other && !op.multiply) {
            const int64_t factor = op.subtract ? -op.b_mantissa : op.b_mantissa;
            for (int k = 0; k < N; k++) p[k] += second[k] * factor;
        }
        for (int k = 0; k < N; k++) p[k] = clamped(columns_.rounded(p[k], k) + zero, low, high);
        for (int k = 0; k < N; k++) result[k] = int8_t(p[k]);
    }
};

}  // namespace weft
