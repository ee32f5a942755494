// KERNEL: executes micro-operations strip by strip. `weft.hdl.isa.kernel` defines them, and has checked them before.
#pragma once

#include <cmath>

#include "columns.h"

namespace weft {

class KernelEngine {
public:
    template <int N>
    bool kernel(State& s, const Kernel& op, const MicroOp* ops) {
        if (!find<N>(s, op)) return false;
        written_.clear(), bytes_.clear();
        for (int64_t block = 0; block < op.ob; block++)
            for (int64_t row = 0; row < op.oy; row += STRIP_ROW_COUNT)
                strip<N>(s, op, ops, block * op.oy + row, std::min<int64_t>(STRIP_ROW_COUNT, op.oy - row));
        for (size_t place = 0; place < written_.size(); place++)
            std::memcpy(s.scratchpad + int64_t(written_[place]) * N, bytes_.data() + place * N, N);
        return true;
    }

private:
    static constexpr int REGISTER_COUNT = 8, SOURCE_COUNT = 4, TARGET_COUNT = 2;
    static constexpr int FACTOR_BITS = 18, LARGEST_FACTOR = 65535;
    static constexpr int MOST_ELEMENTS = STRIP_ROW_COUNT * 128;
    // Addresses of operands by their number in micro-operations: the first vectors of all operands, then the second.
    std::vector<int32_t> sources_[2 * SOURCE_COUNT], targets_[2 * TARGET_COUNT], written_;
    std::vector<int8_t> bytes_;
    alignas(64) int32_t registers_[REGISTER_COUNT][MOST_ELEMENTS], predicate_[MOST_ELEMENTS];
    alignas(64) int32_t first_[MOST_ELEMENTS], second_[MOST_ELEMENTS], shifted_[MOST_ELEMENTS], result_[MOST_ELEMENTS];

    template <int N>
    bool find(const State& s, const Kernel& op) {
        const int64_t size = s.scratchpad_size;
#define WEFT_OPERAND(name, limit, list, index, count)                                                            \
    for (int64_t v = 0; v < op.name##_vectors; v++)                                                              \
        if (!addresses(list[index + v * count], op.name + v, {op.ob, op.name##_ob}, {op.oy, op.name##_oy},       \
                       {op.ox, op.name##_ox}, limit))                                                            \
            return false
        WEFT_OPERAND(src, op.source ? size : s.accumulator_size, sources_, 0, SOURCE_COUNT);
        if (op.with_b) WEFT_OPERAND(b, size, sources_, 1, SOURCE_COUNT);
        if (op.with_c) WEFT_OPERAND(c, size, sources_, 2, SOURCE_COUNT);
        if (op.with_d) WEFT_OPERAND(d, size, sources_, 3, SOURCE_COUNT);
        WEFT_OPERAND(dst, size, targets_, 0, TARGET_COUNT);
        if (op.with_dst2) WEFT_OPERAND(dst2, size, targets_, 1, TARGET_COUNT);
#undef WEFT_OPERAND
        return true;
    }

    // Runs the kernel on `rows` rows from `row` on. Writes are deferred, because all reads come first.
    template <int N>
    void strip(const State& s, const Kernel& op, const MicroOp* ops, int64_t row, int64_t rows) {
        const int64_t elements = rows * N;
        for (auto& some : registers_) std::fill(some, some + elements, 0);
        std::fill(predicate_, predicate_ + elements, 0);
        for (int64_t at = 0, column = 0;;) {
            const MicroOp& micro = ops[at];
            step<N>(s, op, micro, row, rows, column);
            const bool again = micro.again && column + 1 < op.ox;
            if (micro.again) column = again ? column + 1 : 0;
            if (micro.end && !again) break;
            at = again ? micro.target : at + 1;
        }
    }

    template <int N>
    void step(const State& s, const Kernel& op, const MicroOp& micro, int64_t row, int64_t rows, int64_t column) {
        const int64_t elements = rows * N;
        const int32_t* a = micro.a_memory ? read<N>(s, op, micro, row, rows, column) : registers_[micro.a];
        const int32_t* b = second<N>(micro, elements);
        compute<N>(s, micro, a, b, elements, column);
        if (micro.op == OP_MICRO_LT || micro.op == OP_MICRO_EQ) {
            std::copy(result_, result_ + elements, predicate_);
        } else if (!micro.d_memory) {
            std::copy(result_, result_ + elements, registers_[micro.d]);
        } else {
            for (int64_t r = 0; r < rows; r++)
                written_.push_back(targets_[micro.d][size_t((row + r) * op.ox + column)]);
            bytes_.resize(bytes_.size() + size_t(elements));
            int8_t* bytes = bytes_.data() + bytes_.size() - elements;
            for (int64_t k = 0; k < elements; k++) bytes[k] = int8_t(std::min(std::max(result_[k], -128), 127));
        }
    }

    template <int N>
    const int32_t* read(const State& s, const Kernel& op, const MicroOp& micro, int64_t row, int64_t rows,
                        int64_t column) {
        const bool words = micro.a % SOURCE_COUNT == 0 && !op.source;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t place = int64_t(sources_[micro.a][size_t((row + r) * op.ox + column)]) * N;
            int32_t* values = first_ + r * N;
            if (words) std::memcpy(values, s.accumulator + place, sizeof *values * N);
            else
                for (int k = 0; k < N; k++) values[k] = s.scratchpad[place + k] & (micro.unsigned_ ? 0xFF : -1);
            if (op.tail && column == op.ox - 1) std::fill(values + op.tail, values + N, micro.fill ? INT32_MIN : 0);
        }
        return first_;
    }

    template <int N>
    const int32_t* second(const MicroOp& micro, int64_t elements) {
        if (micro.b_immediate) std::fill(second_, second_ + elements, int32_t(micro.immediate));
        else if (const int64_t away = int64_t(1) << micro.swap >> 1)
            for (int64_t k = 0; k < elements; k++) second_[k] = registers_[micro.b][k ^ away];
        else return registers_[micro.b];
        return second_;
    }

    template <int N>
    void compute(const State& s, const MicroOp& micro, const int32_t* __restrict a, const int32_t* __restrict b,
                 int64_t elements, int64_t column) {
        if (micro.op == OP_MICRO_MUL) return multiply(micro, a, b, elements);
        if (micro.op == OP_MICRO_RECIPROCAL || micro.op == OP_MICRO_RSQRT) return divide<N>(micro, a, elements);
        if (micro.op == OP_MICRO_TABLE) {
            const int8_t* table = s.lookup + micro.immediate * 256 + 128;
            for (int64_t k = 0; k < elements; k++) result_[k] = table[std::min(std::max(a[k], -128), 127)];
            return;
        }
        const int32_t* __restrict left = a;
        if (micro.shift) {
            const unsigned shift = unsigned(micro.shift);
            for (int64_t k = 0; k < elements; k++) shifted_[k] = shift < 32 ? int32_t(uint32_t(a[k]) << shift) : 0;
            left = shifted_;
        }
        switch (micro.op) {
#define WEFT_EACH(name, value) \
    case OP_MICRO_##name:      \
        for (int64_t k = 0; k < elements; k++) result_[k] = value; \
        return
            WEFT_EACH(ADD, left[k] + b[k]);
            WEFT_EACH(SUB, left[k] - b[k]);
            WEFT_EACH(RSUB, b[k] - left[k]);
            WEFT_EACH(MIN, left[k] < b[k] ? left[k] : b[k]);
            WEFT_EACH(MAX, left[k] > b[k] ? left[k] : b[k]);
            WEFT_EACH(LT, left[k] < b[k]);
            WEFT_EACH(EQ, left[k] == b[k]);
            WEFT_EACH(SELECT, predicate_[k] ? left[k] : b[k]);
            WEFT_EACH(INDEX, int32_t(b[k] + column * N + k % N));
#undef WEFT_EACH
        }
    }

    void multiply(const MicroOp& micro, const int32_t* __restrict a, const int32_t* __restrict b, int64_t elements) {
        const int64_t scaled = micro.scaled ? 63 : 0, even = micro.floor ? 0 : 1, places = micro.shift;
        for (int64_t k = 0; k < elements; k++) {
            const int64_t factor = int32_t(uint32_t(b[k]) << (32 - FACTOR_BITS)) >> (32 - FACTOR_BITS);
            const int64_t wanted = places + ((b[k] >> FACTOR_BITS) & scaled), shift = wanted < 63 ? wanted : 63;
            const int64_t odd = even & (shift != 0), half = even * (int64_t(uint64_t(1) << shift >> 1) - odd);
            const int64_t product = a[k] * factor;
            result_[k] = int32_t(clamped((product + half + ((product >> shift) & odd)) >> shift, INT32_MIN, INT32_MAX));
        }
    }

    template <int N>
    void divide(const MicroOp& micro, const int32_t* a, int64_t elements) {
        for (int64_t k = 0; k < elements; k++) {
            if (micro.unsigned_ && k % N) result_[k] = result_[k - 1];
            else result_[k] = micro.op == OP_MICRO_RSQRT ? inverse_root(a[k]) : reciprocal(a[k]);
        }
    }
    static int32_t packed(int64_t factor, int64_t exponent) {
        return int32_t((factor & ((1 << FACTOR_BITS) - 1)) | exponent << FACTOR_BITS);
    }
    static int32_t reciprocal(int64_t a) {
        if (a == 0) return packed(LARGEST_FACTOR, 0);
        const int64_t size = a < 0 ? -a : a, bits = bit_length(uint64_t(size)), top = size << (32 - bits) >> 15;
        const int64_t quotient = std::min<int64_t>((int64_t(1) << 32) / top, LARGEST_FACTOR);
        return packed(a < 0 ? -quotient : quotient, bits);
    }
    static int32_t inverse_root(int64_t a) {
        if (a <= 0) return packed(LARGEST_FACTOR, 0);
        const int64_t bits = (bit_length(uint64_t(a)) + 1) / 2 * 2, square = a << (32 - bits);
        int64_t root = int64_t(std::sqrt(double(square)));
        while (root * root > square) root--;
        while ((root + 1) * (root + 1) <= square) root++;
        return packed(std::min<int64_t>((int64_t(1) << 31) / root, LARGEST_FACTOR), bits / 2);
    }
};

}  // namespace weft
