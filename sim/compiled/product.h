// Products of int16 matrices, accumulated modulo 2**32.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace weft {

constexpr int64_t LANES = 16;                                    // columns of a product that are computed in parallel
typedef int32_t Lanes __attribute__((vector_size(4 * LANES)));  // lanes of an int32, or of a pair of int16

inline Lanes lanes_at(const int32_t* at) {
    Lanes lanes;
    std::memcpy(&lanes, at, sizeof lanes);
    return lanes;
}

inline int32_t pair_of(int8_t low, int8_t high) {
    return int32_t(uint32_t(uint16_t(low)) | uint32_t(uint16_t(high)) << 16);
}
inline int32_t pair_at(const int16_t* at) {
    int32_t pair;
    std::memcpy(&pair, at, sizeof pair);
    return pair;
}

// Adds the dot product of the pairs in each lane.
inline Lanes add_pairs(Lanes sum, Lanes a, Lanes b) {
#if defined(__AVX512VNNI__)
    return (Lanes)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return sum + (Lanes)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    __m256i halves[2], left[2], right[2];
    std::memcpy(left, &a, sizeof a);
    std::memcpy(right, &b, sizeof b);
    for (int half = 0; half < 2; half++) halves[half] = _mm256_madd_epi16(left[half], right[half]);
    Lanes products;
    std::memcpy(&products, halves, sizeof products);
    return sum + products;
#else
    return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// Adds the products of ROWS rows with `width` columns (a multiple of LANES) to `total`; both have `pairs` pairs.
// Pair p of row r is at ``rows[2 * (r * pairs + p)]``, and of column c at ``columns[p * width + c]``.
template <int ROWS, int VECTORS>
void multiply_some(const int16_t* rows, const int32_t* columns, int64_t pairs, int64_t width, int64_t column,
                   int32_t* total) {
    Lanes sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = lanes_at(total + r * width + column + v * LANES);
    for (int64_t pair = 0; pair < pairs; pair++) {
        Lanes right[VECTORS];
        for (int v = 0; v < VECTORS; v++) right[v] = lanes_at(columns + pair * width + column + v * LANES);
        for (int r = 0; r < ROWS; r++) {
            const Lanes left = Lanes{} + pair_at(rows + 2 * (r * pairs + pair));
            for (int v = 0; v < VECTORS; v++) sums[r][v] = add_pairs(sums[r][v], left, right[v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            std::memcpy(total + r * width + column + v * LANES, &sums[r][v], sizeof(Lanes));
}

template <int ROWS>
void multiply(const int16_t* rows, const int32_t* columns, int64_t pairs, int64_t width, int32_t* total) {
    int64_t column = 0;
    for (; column + 2 * LANES <= width; column += 2 * LANES)
        multiply_some<ROWS, 2>(rows, columns, pairs, width, column, total);
    if (column < width) multiply_some<ROWS, 1>(rows, columns, pairs, width, column, total);
}

}  // namespace weft
