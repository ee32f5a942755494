// LOAD and STORE: copy bytes.
#pragma once

#include "memories.h"

namespace weft {

class Movement {
public:
    bool load(State& s, const Load& op) {
        const int64_t n = s.n, vectors = (op.length + n - 1) / n, needed = (op.pixels - 1) * op.pitch + op.length;
        if (op.paged || (op.transpose && op.length > n) || op.rows * op.pixels * vectors > MOST || needed > n * MOST)
            return false;
        const int64_t groups = (op.rows * op.pixels + n - 1) / n;
        const Loop rows{op.rows, op.dst_row}, pixels{op.pixels, op.dst_pixel};
        if (!(op.transpose ? addresses(targets_, op.dst, {1, 0}, {groups, op.dst_row}, {n, op.dst_vector}, s.scratchpad_size)
                           : addresses(targets_, op.dst, rows, pixels, {vectors, op.dst_vector}, s.scratchpad_size)))
            return false;
        if (!find_rows(s, op) || (op.blocks && (!op.int4 || op.run % (GROUP * n / 2)))) return false;
        if (op.transpose) pixels_.assign(size_t(groups * n * n), int8_t(op.fill));
        const int64_t taken = std::max<int64_t>(0, std::min(op.int4 ? 2 * op.run : op.run, needed - op.before));
        const int32_t* target = targets_.data();
        for (int64_t row = 0; row < op.rows; row++) {
            const uint8_t* bytes = s.dram + starts_[size_t(row)];
            if (op.int4 || op.before || taken < needed) {
                bytes_.assign(size_t(needed), uint8_t(op.fill));
                if (op.blocks) multiply(bytes_.data() + op.before, bytes, taken, n);
                else if (op.int4) widen(bytes_.data() + op.before, bytes, taken);
                else if (taken) std::memcpy(bytes_.data() + op.before, bytes, size_t(taken));
                bytes = bytes_.data();
            }
            for (int64_t pixel = 0; pixel < op.pixels; pixel++, bytes += op.pitch) {
                if (op.transpose) {
                    std::memcpy(pixels_.data() + (row * op.pixels + pixel) * n, bytes, size_t(op.length));
                    continue;
                }
                for (int64_t done = 0; done < op.length; done += n) {
                    int8_t* cell = s.scratchpad + int64_t(*target++) * n;
                    const int64_t some = std::min(n, op.length - done);
                    std::memcpy(cell, bytes + done, size_t(some));
                    if (some < n) std::memset(cell + some, int(op.fill), size_t(n - some));
                }
            }
        }
        if (op.transpose) transpose(s, groups);
        return true;
    }

    bool store(State& s, const Store& op) {
        const int64_t n = s.n, vectors = (op.length + n - 1) / n, extent = (op.pixels - 1) * op.pitch + op.length;
        if (op.pixels > 1 && op.pitch < op.length) return false;
        if (!addresses(targets_, op.src, {op.rows, op.src_row}, {op.pixels, op.src_pixel}, {vectors, op.src_vector},
                       s.scratchpad_size))
            return false;
        const int64_t start = int64_t(s.bases[op.base]) + op.offset;
        starts_.clear();
        for (int64_t row = 0; row < op.rows; row++) {
            starts_.push_back(dram_place(s, start + row * op.row_pitch, extent));
            if (starts_.back() < 0 || !may_write(s, starts_.back(), extent)) return false;
        }
        const int32_t* source = targets_.data();
        for (int64_t row = 0; row < op.rows; row++) {
            uint8_t* bytes = s.dram + starts_[size_t(row)];
            for (int64_t pixel = 0; pixel < op.pixels; pixel++, bytes += op.pitch)
                for (int64_t done = 0; done < op.length; done += n)
                    std::memcpy(bytes + done, s.scratchpad + int64_t(*source++) * n,
                                size_t(std::min(n, op.length - done)));
        }
        return true;
    }

private:
    std::vector<int32_t> targets_;
    std::vector<int64_t> starts_;
    std::vector<uint8_t> bytes_;
    std::vector<int8_t> pixels_;

    bool find_rows(const State& s, const Load& op) {
        const int64_t start = int64_t(s.bases[op.base]) + op.offset;
        starts_.clear();
        for (int64_t row = 0; row < op.rows; row++) {
            const int64_t size = taken(op.run, op.blocks);
            starts_.push_back(dram_place(s, start + row * op.row_pitch + row / op.line * op.skip, size));
            if (starts_.back() < 0 || (op.int4 && starts_.back() % s.bus_bytes)) return false;
        }
        return true;
    }

    // Unpacks int4 values, low nibble first, to bytes.
    static void widen(uint8_t* to, const uint8_t* from, int64_t values) {
        for (int64_t k = 0; k < values; k++) to[k] = uint8_t(((from[k / 2] >> 4 * (k % 2) & 15) ^ 8) - 8);
    }

    // Unpacks groups of int4 values, in words of n, and multiplies them by the n factors before each group.
    static void multiply(uint8_t* to, const uint8_t* from, int64_t values, int64_t n) {
        const int64_t group = GROUP * n;
        for (int64_t k = 0; k < values; k++) {
            const uint8_t* start = from + k / group * (n + group / 2);
            const int64_t at = k % group;
            const int value = int(int8_t(((start[n + at / 2] >> 4 * (at % 2) & 15) ^ 8) - 8));
            const int product = value * int(int8_t(start[at / n % n]));
            to[k] = uint8_t(int8_t(std::clamp((product + (1 << (FACTOR_PLACES - 1))) >> FACTOR_PLACES, -128, 127)));
        }
    }

    void transpose(State& s, int64_t groups) {
        const int64_t n = s.n;
        for (int64_t group = 0; group < groups; group++)
            for (int64_t byte = 0; byte < n; byte++) {
                int8_t* cell = s.scratchpad + int64_t(targets_[size_t(group * n + byte)]) * n;
                for (int64_t pixel = 0; pixel < n; pixel++)
                    cell[pixel] = pixels_[size_t((group * n + pixel) * n + byte)];
            }
    }
};

}  // namespace weft
