// Datapath of the sequential core: hdl/sequential/multiplier.py, rows.py, scratchpad.py and the memories of core.py. It
// computes all values, because some of them determine cycles and jumps.
#pragma once

#include <algorithm>
#include <cstring>

#include "common.h"

namespace weft::sequential {

inline int64_t sign_extended(uint64_t value, unsigned bits) {
    return int64_t(value << (64 - bits)) >> (64 - bits);
}

// Multiplier with lazy evaluation: it multiplies when its result or its next input is needed.
class Multiplier {
public:
    unsigned unsigned_bits = 24, signed_bits = 0;
    int32_t multiplicand = 0;

    void start(uint32_t value, bool keep, bool wide, Cycle at) {
        settle();
        before_ = keep ? sign_extended(uint64_t(product_), 34) : 0;
        factor_ = wide ? sign_extended(value, signed_bits) : int64_t(value & ((1u << unsigned_bits) - 1));
        wide_ = wide, going_ = true, started_ = at;
        if (!wide) shift_ |= value >> 24 & 63;
    }
    void set_shift(uint32_t value) {
        settle();
        shift_ = value & 63;
    }
    // Returns the first cycle with a valid result.
    Cycle ready() {
        settle();
        return ready_;
    }
    uint32_t result(bool raw) const {
        const int64_t most = wide_ ? INT32_MAX : int64_t(1) << 30, least = wide_ ? INT32_MIN : -(int64_t(1) << 30);
        if (fits(raw)) return uint32_t(product_);
        return uint32_t(product_ < 0 ? least : most);
    }
    // Returns the increment (0 or 1) that rounds the result.
    uint32_t round(bool raw) const {
        if (wide_) return fits(raw) && half_ && (rest_ || (product_ & 1)) && product_ != INT32_MAX;
        return fits(raw) && half_ && (raw || rest_ || (product_ & 1));
    }

private:
    int64_t product_ = 0, before_ = 0, factor_ = 0;
    bool half_ = false, rest_ = false, wide_ = false, going_ = false;
    Cycle started_ = 0, ready_ = 0;
    uint32_t shift_ = 0;

    bool fits(bool raw) const {
        if (wide_) return product_ == int32_t(product_);
        const int64_t top = product_ >> 30;
        return raw || top == 0 || top == -1;
    }
    // Cycles: one per radix-4 digit, then one per 8 places of the shift, one per 2 remaining places, one for the last
    // place, and one to detect the end. With an odd shift the product is doubled, but not the value added to it.
    void settle() {
        if (!going_) return;
        const bool odd = shift_ & 1;
        const int64_t doubled = (multiplicand * factor_ << odd) + before_;
        ready_ = started_ + 2 + std::max(unsigned_bits, signed_bits) / 2 + 1 + shift_ / 8 + shift_ % 8 / 2 + shift_ % 2;
        const unsigned places = shift_ + odd;
        const __int128 all = doubled;
        product_ = int64_t(all >> places);
        half_ = places && (all >> (places - 1) & 1);
        rest_ = places > 1 && (all & ((__int128(1) << (places - 1)) - 1));
        shift_ = 0, going_ = false;
    }
};

// The scratchpad, the vector read last from it, and the table.
struct Store {
    std::vector<uint8_t> bytes, table;
    uint8_t vector[128]{};
    unsigned n = 4, size = 0, table_step = 0;
    uint32_t table_at = 0;
    uint8_t entry = 0;

    uint8_t* at(uint32_t address) { return &bytes[size_t(address & (size - 1)) * n]; }
    void read(uint32_t address) { std::memcpy(vector, at(address), n); }
    uint32_t in_table(uint32_t at) const { return at & uint32_t(table.size() - 1); }
    void table_address(uint32_t value) {
        table_at = in_table(value >> table_step);
        entry = table[table_at];
    }
    void table_write(uint32_t value) {
        table[table_at] = uint8_t(value);
        table_at = in_table(table_at + 1);
    }
};

// Rows of A times weights. Results are computed at once, and are valid from cycle `done` on.
class Rows {
public:
    uint32_t a = 0, a_step = 0, c = 0, c_step = 0, x = 0, bound = 0;
    int8_t x_step = 0;
    bool row_valid = false;
    unsigned n = 4, accumulator_size = 0;
    bool wide = false;  // subtract a zero point from activations
    Store* store = nullptr;
    std::vector<int32_t> row, sums;  // accumulator row read last; sums of the last row of A
    Cycle done = 0;
    uint64_t active = 0;

    void configure(unsigned lanes, unsigned rows, bool wide_activations, Store* scratchpad) {
        n = lanes, accumulator_size = rows, wide = wide_activations, store = scratchpad;
        row.assign(n, 0), sums.assign(n, 0), weights_.assign(n * n, 0), operands_.assign(n, 0);
        accumulator_.assign(size_t(2) * rows * n, 0);
    }
    void mode(uint32_t value) {
        quiet_ = value & 1, overwrite_ = value >> 1 & 1, zeros_ = value >> 2 & 1;
        pad_ = int8_t(value >> 8), zero_ = int8_t(value >> 16);
    }
    bool in_range() const { return !(x >> 15 & 1) && x < bound; }
    void step_a() {
        store->read(a);
        a += a_step;
    }
    // Stores the vector read last as a column of weights.
    void weight(unsigned column) {
        for (unsigned k = 0; k < n; k++) weights_[column * n + k] = int8_t(store->vector[k]);
    }
    void read_row() { std::memcpy(row.data(), at(overwrite_), n * sizeof(int32_t)); }
    void write(unsigned column, uint32_t value) { at(zeros_)[column] = int32_t(value); }

    // Multiplies `count` rows, one a cycle.
    void start(uint32_t count, Cycle now) {
        count &= 0xFFF;
        for (uint32_t k = 0; k < count; k++) step();
        active += count;
        done = std::max(done, now + count + 1);
    }

private:
    std::vector<int16_t> weights_, operands_;
    std::vector<int32_t> accumulator_;
    bool quiet_ = false, overwrite_ = false, zeros_ = false;
    int8_t pad_ = 0, zero_ = 0;

    // Returns the accumulator row at `c`, or with `none` the row of zeros after all others.
    int32_t* at(bool none) {
        return &accumulator_[size_t(none ? accumulator_size : c & (accumulator_size - 1)) * n];
    }
    void step() {
        const bool valid = row_valid && in_range();
        step_a();
        x = (x + uint32_t(int32_t(x_step))) & 0xFFFF;
        const int less = wide ? zero_ : 0;
        for (unsigned k = 0; k < n; k++) operands_[k] = int16_t((valid ? int8_t(store->vector[k]) : pad_) - less);
        read_row();
        int32_t* const to = at(zeros_);
        for (unsigned j = 0; j < n; j++) {
            int32_t sum = 0;
            for (unsigned k = 0; k < n; k++) sum += int32_t(operands_[k]) * weights_[j * n + k];
            sums[j] = sum;
            if (!quiet_) to[j] = int32_t(uint32_t(row[j]) + uint32_t(sum));
        }
        c += c_step;
    }
};

}  // namespace weft::sequential
