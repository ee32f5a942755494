// MM: gathers rows of A and tiles of B, multiplies them, and adds the products to the accumulator.
#pragma once

#include "columns.h"
#include "product.h"

namespace weft {

class Matrix {
public:
    template <int N>
    bool mm(State& s, const Mm& op) {
        if (op.align && op.depthwise) return false;
        rows_ = op.oy * op.ox, steps_ = op.ky * op.kx * op.kc;
        if (rows_ * op.nt > MOST || rows_ * steps_ > MOST || steps_ * op.nt * N > MOST) return false;
        place(op);
        if (!find_cells(s, op) || !reaches_a(s, op) || !reaches_b<N>(s, op)) return false;
        if (op.align && op.alignment + steps_ * rows_ > s.alignment_count) return false;
        for (int k = 0; k < N; k++) padding_[k] = int8_t(op.pad);
        // Tiles with the same rows of A are multiplied together. Aligned tiles that share rows of C are not, because
        // each shifts the sums of the tiles before it.
        const bool apart = op.a_nt || op.depthwise || (op.align && shared_);
        const int64_t together = apart ? 1 : std::max(1, MOST_COLUMNS / N);
        for (int64_t tile = 0; tile < op.nt; tile += together) {
            const int64_t tiles = std::min(together, op.nt - tile);
            width_ = (tiles * N + LANES - 1) / LANES * LANES;
            total_.assign(size_t(rows_ * width_), 0);
            if (op.align) {
                add_aligned<N>(s, op, tile, tiles);
                continue;
            }
            if (op.depthwise) depthwise<N>(s, op, tile);
            else multiply_steps<N>(s, op, tile, tiles, 0, steps_);
            add<N>(s, op, tile, tiles);
        }
        return true;
    }

private:
    static constexpr int MOST_COLUMNS = 128, MOST_TERMS = 1024, MOST_TAPS = 8, BLOCK = 8;

    struct Place {
        int32_t address, y, x, b;
    };
    std::vector<Place> row_, step_;
    std::vector<int32_t> cells_, total_, part_, columns_;
    std::vector<float> line_;
    std::vector<int16_t> left_;
    std::vector<uint32_t> seen_;
    int8_t padding_[128];
    int64_t rows_ = 0, steps_ = 0, width_ = 0;
    uint32_t stamp_ = 0;
    bool shared_ = false, bounded_ = false;

    // Computes the addresses and coordinates of rows and contraction steps.
    void place(const Mm& op) {
        row_.resize(size_t(rows_)), step_.resize(size_t(steps_));
        Place* next = row_.data();
        for (int64_t y = 0; y < op.oy; y++)
            for (int64_t x = 0; x < op.ox; x++)
                *next++ = {int32_t(y * op.a_oy + x * op.a_ox), int32_t(y * op.y_oy), int32_t(x * op.x_ox), 0};
        next = step_.data();
        for (int64_t y = 0; y < op.ky; y++)
            for (int64_t x = 0; x < op.kx; x++)
                for (int64_t c = 0; c < op.kc; c++)
                    *next++ = {int32_t(op.a + y * op.a_ky + x * op.a_kx + c * op.a_kc), int32_t(op.y + y * op.y_ky),
                               int32_t(op.x + x * op.x_kx), int32_t(op.b + y * op.b_ky + x * op.b_kx + c * op.b_kc)};
    }

    // Computes the rows of C, tile by tile. Returns false if a row is outside memory, or a tile has a row twice.
    bool find_cells(const State& s, const Mm& op) {
        if (!addresses(cells_, op.c, {op.nt, op.c_nt}, {op.oy, op.c_oy}, {op.ox, op.c_ox}, s.accumulator_size))
            return false;
        seen_.resize(size_t(s.accumulator_size));
        const uint32_t first = stamp_ + 1;
        shared_ = false;
        for (int64_t tile = 0; tile < op.nt; tile++) {
            if (++stamp_ == 0) {
                std::fill(seen_.begin(), seen_.end(), 0);
                return false;
            }
            for (int64_t row = 0; row < rows_; row++) {
                uint32_t& seen = seen_[size_t(cells_[size_t(tile * rows_ + row)])];
                if (seen == stamp_) return false;
                shared_ |= seen >= first;
                seen = stamp_;
            }
        }
        return true;
    }

    // Returns true if all vectors of A with coordinates in range are in memory. Sets `bounded_` if any are out of
    // range.
    bool reaches_a(const State& s, const Mm& op) {
        const Span y({{op.oy, op.y_oy}, {op.ky, op.y_ky}}), x({{op.ox, op.x_ox}, {op.kx, op.x_kx}});
        bounded_ = !y.inside(op.y, std::min<int64_t>(op.h, 0x8000)) || !x.inside(op.x, std::min<int64_t>(op.w, 0x8000));
        const Span all({{op.nt, op.a_nt}, {op.ky, op.a_ky}, {op.kx, op.a_kx}, {op.kc, op.a_kc}, {op.oy, op.a_oy},
                        {op.ox, op.a_ox}});
        if (all.inside(op.a, s.scratchpad_size)) return true;
        const Span inner({{op.nt, op.a_nt}, {op.kc, op.a_kc}});
        for (int64_t k = 0; k < steps_; k += op.kc)
            for (const Place& row : row_) {
                if (!allowed(op, row, step_[size_t(k)])) continue;
                const int64_t first = (row.address + step_[size_t(k)].address) & 0xFFFF;
                if (!inner.inside(first, s.scratchpad_size) && !reaches_each(s, op, first)) return false;
            }
        return true;
    }
    bool reaches_each(const State& s, const Mm& op, int64_t first) const {
        for (int64_t tile = 0; tile < op.nt; tile++)
            for (int64_t c = 0; c < op.kc; c++)
                if (((first + tile * op.a_nt + c * op.a_kc) & 0xFFFF) >= s.scratchpad_size) return false;
        return true;
    }
    template <int N>
    bool reaches_b(const State& s, const Mm& op) const {
        const Span all({{op.nt, op.b_nt}, {op.ky, op.b_ky}, {op.kx, op.b_kx}, {op.kc, op.b_kc}, {N, op.b_row}});
        if (all.inside(op.b, s.scratchpad_size)) return true;
        for (int64_t tile = 0; tile < op.nt; tile++)
            for (const Place& step : step_)
                for (int64_t word = 0; word < N; word++)
                    if (((step.b + tile * op.b_nt + word * op.b_row) & 0xFFFF) >= s.scratchpad_size) return false;
        return true;
    }

    bool allowed(const Mm& op, const Place& row, const Place& step) const {
        return !bounded_ || (within(row.y + step.y, op.h) && within(row.x + step.x, op.w));
    }
    template <int N>
    const int8_t* vector_of_a(const State& s, const Mm& op, const Place& row, const Place& step, int64_t tile) const {
        if (!allowed(op, row, step)) return padding_;
        return s.scratchpad + ((row.address + step.address + tile * op.a_nt) & 0xFFFF) * N;
    }
    template <int N>
    static const int8_t* word_of_b(const State& s, const Mm& op, const Place& step, int64_t tile, int64_t word) {
        return s.scratchpad + ((step.b + tile * op.b_nt + word * op.b_row) & 0xFFFF) * N;
    }

    // Adds the products of some contraction steps to `total_`.
    template <int N>
    void multiply_steps(const State& s, const Mm& op, int64_t tile, int64_t tiles, int64_t first, int64_t behind) {
        constexpr int64_t most = std::max(1, MOST_TERMS / N);
        for (int64_t step = first; step < behind; step += most) {
            const int64_t steps = std::min(most, behind - step);
            gather_b<N>(s, op, tile, tiles, step, steps);
            int64_t row = 0;
            for (; row + BLOCK <= rows_; row += BLOCK) multiply_rows<N, BLOCK>(s, op, tile, step, steps, row);
            for (; row + 2 <= rows_; row += 2) multiply_rows<N, 2>(s, op, tile, step, steps, row);
            for (; row < rows_; row++) multiply_rows<N, 1>(s, op, tile, step, steps, row);
        }
    }
    template <int N, int ROWS>
    void multiply_rows(const State& s, const Mm& op, int64_t tile, int64_t step, int64_t steps, int64_t row) {
        left_.resize(size_t(BLOCK * std::max(N, MOST_TERMS)));
        int16_t* next = left_.data();
        for (int64_t r = row; r < row + ROWS; r++)
            for (int64_t k = step; k < step + steps; k++, next += N) {
                const int8_t* a = vector_of_a<N>(s, op, row_[size_t(r)], step_[size_t(k)], tile);
                for (int j = 0; j < N; j++) next[j] = int16_t(a[j] - op.zero);
            }
        multiply<ROWS>(left_.data(), columns_.data(), steps * N / 2, width_, total_.data() + row * width_);
    }
    template <int N>
    void gather_b(const State& s, const Mm& op, int64_t tile, int64_t tiles, int64_t step, int64_t steps) {
        columns_.assign(size_t(steps * N / 2 * width_), 0);
        for (int64_t k = 0; k < steps; k++)
            for (int64_t t = 0; t < tiles; t++)
                for (int64_t word = 0; word < N; word++) {
                    const int8_t* b = word_of_b<N>(s, op, step_[size_t(step + k)], tile + t, word);
                    int32_t* column = columns_.data() + k * (N / 2) * width_ + t * N + word;
                    for (int pair = 0; pair < N / 2; pair++)
                        column[pair * width_] = pair_of(b[2 * pair], b[2 * pair + 1]);
                }
    }

    // Adds depthwise convolutions along rows to `total_`, in float32, which is exact for this few products.
    template <int N>
    void depthwise(const State& s, const Mm& op, int64_t tile) {
        const int64_t taps = s.depthwise_taps;
        line_.assign(size_t((taps - 1 + op.ox) * N), 0);  // with zeros before the line
        for (const Place& step : step_) {
            float weights[MOST_TAPS][N];
            for (int64_t tap = 0; tap < taps; tap++) {
                const int8_t* b = word_of_b<N>(s, op, step, tile, N - 2 * taps + 2 * tap);
                for (int k = 0; k < N; k++) weights[tap][k] = b[k];
            }
            for (int64_t y = 0; y < op.oy; y++) {
                for (int64_t x = 0; x < op.ox; x++) {
                    const int8_t* a = vector_of_a<N>(s, op, row_[size_t(y * op.ox + x)], step, tile);
                    float* next = line_.data() + (taps - 1 + x) * N;
                    for (int k = 0; k < N; k++) next[k] = float(a[k] - int(op.zero));
                }
                for (int64_t x = 0; x < op.ox; x++) {
                    float sum[N] = {};
                    for (int64_t tap = 0; tap < taps; tap++)
                        for (int k = 0; k < N; k++) sum[k] += line_[size_t((x + tap) * N + k)] * weights[tap][k];
                    int32_t* sums = total_.data() + (y * op.ox + x) * width_;
                    for (int k = 0; k < N; k++) sums[k] += int32_t(sum[k]);
                }
            }
        }
    }

    int32_t* cell(State& s, int64_t tile, int64_t row, int n) const {
        return s.accumulator + int64_t(cells_[size_t(tile * rows_ + row)]) * n;
    }

    template <int N>
    void add(State& s, const Mm& op, int64_t tile, int64_t tiles) {
        for (int64_t t = 0; t < tiles; t++)
            for (int64_t row = 0; row < rows_; row++) {
                int32_t* sums = cell(s, tile + t, row, N);
                const int32_t* sum = total_.data() + row * width_ + t * N;
                if (op.accumulate)
                    for (int k = 0; k < N; k++) sums[k] += sum[k];
                else
                    std::memcpy(sums, sum, sizeof *sums * N);
            }
    }

    // Adds steps one by one: the row's alignment shifts either the products or the sum so far.
    template <int N>
    void add_aligned(State& s, const Mm& op, int64_t tile, int64_t tiles) {
        part_.assign(size_t(rows_ * width_), 0);
        if (op.accumulate)
            for (int64_t t = 0; t < tiles; t++)
                for (int64_t row = 0; row < rows_; row++)
                    std::memcpy(part_.data() + row * width_ + t * N, cell(s, tile + t, row, N), sizeof(int32_t) * N);
        for (int64_t step = 0; step < steps_; step++) {
            std::fill(total_.begin(), total_.end(), 0);
            multiply_steps<N>(s, op, tile, tiles, step, step + 1);
            for (int64_t row = 0; row < rows_; row++) {
                const int64_t by = s.alignments[op.alignment + step * rows_ + row];
                const int64_t u = std::max<int64_t>(by, 0), v = std::max<int64_t>(-by, 0);
                int32_t* sum = part_.data() + row * width_;
                const int32_t* product = total_.data() + row * width_;
                for (int64_t k = 0; k < width_; k++) sum[k] = int32_t(rsh(sum[k], u) + rsh(product[k], v));
            }
        }
        for (int64_t t = 0; t < tiles; t++)
            for (int64_t row = 0; row < rows_; row++)
                std::memcpy(cell(s, tile + t, row, N), part_.data() + row * width_ + t * N, sizeof(int32_t) * N);
    }
};

}  // namespace weft
