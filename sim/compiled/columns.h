// Parameters of columns for `Vec` and `Softmax`, and rounding.
#pragma once

#include "memories.h"

namespace weft {

struct Columns {
    alignas(64) int32_t bias[128], mantissa[128];
    alignas(64) int64_t shift[128], half[128], odd[128];

    // Reads the parameters. Returns false if they are outside memory, or a mantissa has too many bits.
    template <int N>
    bool read(const State& s, int64_t params) {
        for (int64_t byte = 0; byte < PARAMETER_VECTOR_COUNT; byte++)
            if (((params + byte) & 0xFFFF) >= s.scratchpad_size) return false;
        for (int k = 0; k < N; k++) {
            uint64_t word = 0;
            for (int64_t byte = 0; byte < PARAMETER_VECTOR_COUNT; byte++)
                word |= uint64_t(uint8_t(s.scratchpad[((params + byte) & 0xFFFF) * N + k])) << 8 * byte;
            bias[k] = int32_t(word), mantissa[k] = word >> 32 & 0xFFFFFF, shift[k] = word >> 56 & 63;
            if (mantissa[k] >> s.mantissa_bits) return false;
            half[k] = shift[k] ? (int64_t(1) << (shift[k] - 1)) - 1 : 0, odd[k] = shift[k] != 0;
        }
        return true;
    }

    // Returns ``product / 2**shift`` of a column, rounded half to even: adds half minus 1, plus 1 if the quotient is
    // odd. Exact for products of 57 bits.
    int64_t rounded(int64_t product, int k) const {
        return (product + half[k] + ((product >> shift[k]) & odd[k])) >> shift[k];
    }
};

// Returns ``product / 2**shift``, rounded half to even.
inline int64_t round_half_even(int64_t product, int64_t shift) {
    const int64_t odd = shift != 0, half = int64_t(uint64_t(1) << shift >> 1) - odd;
    return (product + half + ((product >> shift) & odd)) >> shift;
}

// Shifts right, rounding half up, like `rsh` of weft.sim.golden.memories.
inline int64_t rsh(int64_t value, int64_t shift) { return (value + (int64_t(1) << shift >> 1)) >> shift; }

inline int64_t bit_length(uint64_t value) { return value ? 64 - __builtin_clzll(value) : 0; }

inline int64_t clamped(int64_t value, int64_t low, int64_t high) {
    const int64_t above = value < low ? low : value;
    return above > high ? high : above;
}

}  // namespace weft
