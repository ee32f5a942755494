// The matrix unit: rows of A and prefetched tiles of B (hdl/matrix/mm_rows.py), and the latency of the array until sums
// reach the accumulator (hdl/matrix/mm.py).
//
// Its reads have priority, so once it has an instruction, only the next instruction influences it. It is therefore
// simulated ahead of all other units, and records its port requests for each cycle.
#pragma once

#include <algorithm>
#include <cstring>

#include "common.h"

namespace weft {

// A byte for every cycle of the near past and future.
class Track {
public:
    uint8_t at(Cycle cycle) const { return bytes_[cycle % HORIZON]; }
    void set(Cycle cycle, uint8_t value) { bytes_[cycle % HORIZON] = value; }
    void fill(Cycle from, Cycle to, uint8_t value) {
        if (to - from >= HORIZON) from = to - HORIZON;
        const size_t begin = from % HORIZON, count = size_t(to - from), whole = std::min(count, HORIZON - begin);
        std::memset(bytes_ + begin, value, whole);
        std::memset(bytes_, value, count - whole);
    }

private:
    uint8_t bytes_[HORIZON]{};
};

struct Matrix {
    using Rows = RowWalk;
    using Tiles = TileWalk;
    struct Row {
        uint32_t c = 0;
        uint16_t signal = 0;
        uint8_t bank = 0;
        bool inside = false, first = false, overwrite = false, last = false;
    };

    // Rows: loop nest, skid buffer, and the register of the next row, which may be issued from cycle `clear` on.
    Nest<RowWalk::LOOPS, RowWalk::VALUES> rows;
    Row row;
    SkidBuffer<Row> ahead;
    bool valid = false;
    Cycle clear = 0;
    std::vector<Cycle> issued;  // per row of C: 1 + cycle of the last issue
    uint16_t h = 1, w = 1, signal = 0;
    bool accumulate = false;
    // Weights.
    Nest<TileWalk::LOOPS, TileWalk::VALUES> tiles;
    bool loaded = false, taken = false;
    unsigned running = 0;
    uint64_t active = 0, stall_weights = 0, stall_port = 0;
    Cycle first_row = 0, last_write = 0;
    // All cycles before `until` are simulated: requests of B and A (1 + bank, or 0), and ends of instructions.
    Cycle until = 1;
    Track asks_b, asks_a;
    Fifo<Cycle, 32> ends;

    void configure(const Parameters& p) {
        issued.assign(size_t(p.accumulator_size), 0);
        a_mask_ = uint32_t(p.scratchpad_size - 1), c_mask_ = uint32_t(p.accumulator_size - 1);
        a_shift_ = log2_of(uint64_t(p.scratchpad_depth)), c_shift_ = log2_of(uint64_t(p.accumulator_depth));
        p_ = &p;
        latency_ = Cycle(p.row_latency + p.array_latency);
        visible_ = Cycle(p.rmw_latency);
        row_latency_ = Cycle(p.row_latency);
    }
    bool quiet() const { return !rows.active && !tiles.active && !valid && !ahead.valid; }
    // Returns 1 + the bank of the accumulator that a row is added to, or 0.
    unsigned adds(Cycle now) const { return now < adds_until_ ? adds_.at(now) : 0; }

    // Simulates up to `now`, and on until a cycle in which the contents of the queue beyond `op` matter.
    void run_ahead(Cycle now, const Mm* op, Schedule& schedule) {
        if (until < now) until = now;
        const Cycle limit = now + HORIZON / 2;
        while (until < limit && !quiet() && !looks_at_queue(op)) {
            if (!bulk(op, limit)) step(until, op, schedule);
        }
    }

    // Simulates the first cycle that is not simulated. Returns true if `op`, the head of the queue, is accepted.
    bool step(Cycle now, const Mm* op, Schedule& schedule) {
        until = now + 1;
        const bool wants_b = tiles.active && !(tiles.first(Tiles::ROW) && loaded);
        const bool last_word = tiles.active && tiles.last(Tiles::ROW);
        const bool ready = loaded || last_word;
        const unsigned b = wants_b ? 1 + bank(tiles.at(Tiles::B)) : 0;
        const bool waits = valid && row.first && !ready;
        const bool free_row = valid && now >= clear && !waits;
        const unsigned a = free_row && row.inside ? 1 + row.bank : 0;
        const bool issues = free_row && (!a || a != b);
        stall_weights += waits;
        stall_port += valid && !issues && !waits;
        asks_b.set(now, uint8_t(b)), asks_a.set(now, uint8_t(a));

        // Registers change only from here on.
        const bool weights_free = !tiles.active || (last_word && op && tiles.last_all());
        const bool steps = rows.active && ahead.ready();
        const bool rows_free = !rows.active || (steps && outer_last_ && rows.last(Rows::OX));
        const bool loads_weights = op && !taken && weights_free, accepts = op && rows_free && (taken || weights_free);

        const bool swaps = issues && row.first;
        add(now + latency_, issues && !row.overwrite ? uint8_t(1 + (row.c >> c_shift_)) : 0);
        if (issues) issue(now, schedule);
        advance(issues, steps);
        if (swaps) loaded = false, swapped_ = now;
        else if (last_word) loaded = true;
        if (wants_b) tiles.step();
        if (loads_weights) load_weights(*op);
        if (accepts) load_rows(*op), taken = false, running++;
        else if (loads_weights) taken = true;
        return accepts;
    }

private:
    uint32_t a_mask_ = 0, c_mask_ = 0;
    unsigned a_shift_ = 0, c_shift_ = 0;
    const Parameters* p_ = nullptr;
    Cycle latency_ = 0, visible_ = 0, row_latency_ = 0, swapped_ = 0;
    bool tile_begins_ = false, overwrite_ = false, outer_last_ = false;
    Track adds_;
    Cycle adds_until_ = 0;

    unsigned bank(int64_t address) const { return (uint32_t(address) & a_mask_) >> a_shift_; }

    // Returns true if the contents of the queue beyond `op` matter in this cycle.
    bool looks_at_queue(const Mm* op) const {
        const bool weights_free = !tiles.active || (tiles.last(Tiles::ROW) && tiles.last_all());
        if (!op && !taken && weights_free) return true;
        return (taken || weights_free) && (!rows.active || (outer_last_ && rows.last(Rows::OX)));
    }

    void add(Cycle at, uint8_t value) {
        if (adds_until_ < at) adds_.fill(adds_until_, at, 0);
        adds_.set(at, value);
        adds_until_ = at + 1;
    }

    void issue(Cycle now, Schedule& schedule) {
        if (!active++) first_row = now + row_latency_;
        issued[row.c] = now + 1;
        last_write = now + latency_ + visible_ - 1;
        if (row.last) {
            Slot& slot = schedule.at(now + latency_ + visible_);
            slot.mm_done = true, slot.mm_signal = row.signal;
            ends.push(now + latency_ + visible_);
        }
    }

    // Moves the next row to the register, and the nest's row to the skid buffer.
    void advance(bool issues, bool steps) {
        const bool moves = ahead.valid && (!valid || issues);
        if (moves) {
            row = ahead.out;
            valid = true;
            clear = row.overwrite || !issued[row.c] ? 0 : issued[row.c] - 1 + visible_;
        } else if (issues) valid = false;
        if (steps) {
            ahead.step(true, nest_row(), moves);
            if (rows.step() != Rows::OX) enter_row();
        } else if (ahead.valid) ahead.step(false, Row{}, moves);
    }

    Row nest_row() const {
        Row result;
        result.inside = uint16_t(rows.at(Rows::Y)) < h && uint16_t(rows.at(Rows::X)) < w;
        result.first = tile_begins_ && rows.first(Rows::OX);
        result.bank = uint8_t(bank(rows.at(Rows::A)));
        result.c = uint32_t(rows.at(Rows::C)) & c_mask_;
        result.overwrite = overwrite_;
        result.last = outer_last_ && rows.last(Rows::OX);
        result.signal = result.last ? signal : 0;
        return result;
    }

    // Computes the flags that are constant in the innermost loop.
    void enter_row() {
        tile_begins_ = rows.first(Rows::OY);
        overwrite_ = !accumulate && rows.first(Rows::KY) && rows.first(Rows::KX) && rows.first(Rows::KC);
        outer_last_ = rows.last(Rows::NT) && rows.last(Rows::KY) && rows.last(Rows::KX) && rows.last(Rows::KC) && rows.last(Rows::OY);
    }

    // Issues many rows of the innermost loop at once, if nothing can stall them: one a cycle, after the start of a
    // tile. Returns false if there are none.
    bool bulk(const Mm* op, Cycle limit) {
        // The register and the skid buffer hold the two rows before the nest's row.
        if (!valid || !ahead.valid || ahead.full || !rows.active || rows.index[Rows::OX] < 3) return false;
        if (until < clear || until - swapped_ < visible_ || (op && !taken && !tiles.active)) return false;
        int64_t count = std::min<int64_t>(rows.count[Rows::OX] - 1 - rows.index[Rows::OX], int64_t(limit - until));
        const bool wants_b = tiles.active && !(tiles.first(Tiles::ROW) && loaded);
        if (wants_b) count = std::min(count, tiles.count[Tiles::ROW] - 1 - tiles.index[Tiles::ROW]);
        if (count < 4) return false;
        const int64_t a = rows.at(Rows::A) - 2 * rows.stride[Rows::A][Rows::OX], a_end = a + (count - 1) * rows.stride[Rows::A][Rows::OX];
        const int64_t c = rows.at(Rows::C) - 2 * rows.stride[Rows::C][Rows::OX], c_end = c + (count - 1) * rows.stride[Rows::C][Rows::OX];
        const int64_t b_end = tiles.at(Tiles::B) + (count - 1) * tiles.stride[Tiles::B][Tiles::ROW];
        if (!same(a, a_end, a_shift_) || !same(c, c_end, c_shift_)) return false;
        if (wants_b && (!same(tiles.at(Tiles::B), b_end, a_shift_) || bank(a) == bank(b_end))) return false;

        const Cycle to = until + Cycle(count);
        asks_b.fill(until, to, uint8_t(wants_b ? 1 + bank(b_end) : 0));
        mark_a(count, uint8_t(1 + bank(a)));
        if (adds_until_ < until + latency_) adds_.fill(adds_until_, until + latency_, 0);
        const uint8_t c_bank = uint8_t((uint32_t(c) & c_mask_) >> c_shift_);
        adds_.fill(until + latency_, to + latency_, overwrite_ ? 0 : uint8_t(1 + c_bank));
        adds_until_ = to + latency_;
        for (int64_t k = std::max<int64_t>(0, count - int64_t(visible_)); k < count; k++)
            issued[uint32_t(c + k * rows.stride[Rows::C][Rows::OX]) & c_mask_] = until + Cycle(k) + 1;
        active += uint64_t(count);
        last_write = to - 1 + latency_ + visible_ - 1;
        if (wants_b) tiles.index[Tiles::ROW] += count, tiles.level[Tiles::B][Tiles::ROW] += count * tiles.stride[Tiles::B][Tiles::ROW];
        skip(count - 2);
        row = nest_row(), rows.step();
        ahead.out = nest_row(), rows.step();
        clear = 0;
        until = to;
        return true;
    }

    void skip(int64_t count) {
        rows.index[Rows::OX] += count;
        for (unsigned value = 0; value < Rows::VALUES; value++) rows.level[value][Rows::OX] += count * rows.stride[value][Rows::OX];
    }

    // Returns true if all addresses of a range lie in one bank, and none wraps.
    static bool same(int64_t from, int64_t to, unsigned shift) { return from >= 0 && from >> shift == to >> shift; }

    // Records the requests for A of the next `count` rows; rows in the padding need none.
    void mark_a(int64_t count, uint8_t value) {
        const int64_t y_step = rows.stride[Rows::Y][Rows::OX], x_step = rows.stride[Rows::X][Rows::OX];
        const int64_t y = int16_t(rows.at(Rows::Y) - 2 * y_step), x = int16_t(rows.at(Rows::X) - 2 * x_step);
        if (within(y, y + (count - 1) * y_step, h) && within(x, x + (count - 1) * x_step, w))
            asks_a.fill(until, until + Cycle(count), value);
        else
            for (int64_t k = 0; k < count; k++) {
                const bool inside = uint16_t(y + k * y_step) < h && uint16_t(x + k * x_step) < w;
                asks_a.set(until + Cycle(k), inside ? value : 0);
            }
    }

    // Returns true if all coordinates from `from` to `to` are in range.
    static bool within(int64_t from, int64_t to, uint16_t bound) {
        return std::min(from, to) >= 0 && std::max(from, to) < std::min<int64_t>(bound, 1 << 15);
    }

    // Merges the two loops over rows into the innermost loop, if their strides allow it.
    void flatten() {
        const int64_t count = rows.count[Rows::OX];
        for (unsigned value = 0; value < Rows::VALUES; value++)
            if (count > 1 && rows.stride[value][Rows::OY] != count * rows.stride[value][Rows::OX]) return;
        if (count == 1)
            for (unsigned value = 0; value < Rows::VALUES; value++) rows.stride[value][Rows::OX] = rows.stride[value][Rows::OY];
        rows.count[Rows::OX] *= rows.count[Rows::OY], rows.count[Rows::OY] = 1;
    }

    void load_weights(const Mm& op) {
        Tiles::take(tiles, *p_, op);
        tiles.start();
    }

    void load_rows(const Mm& op) {
        Rows::take(rows, *p_, op);
        flatten();
        h = uint16_t(op.h), w = uint16_t(op.w), signal = uint16_t(op.signal), accumulate = op.accumulate;
        rows.start();
        enter_row();
    }
};

}  // namespace weft
