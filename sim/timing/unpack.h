// From bus beats to scratchpad vectors: the unpacker (hdl/load/unpack.py) and the transposer (hdl/load/transpose.py).
#pragma once

#include <algorithm>

#include "common.h"

namespace weft {

// Descriptor of a LOAD for the unpacker, with the names of hdl/load/unpack.py.
struct Unpack {
    int32_t index = -1;
    uint16_t signal = 0;
    bool split = false, transpose = false, int4 = false, blocks = false;
    int64_t align = 0, align_row = 0, align_line = 0, line_last = 0, before = 0, run_last = 0;
    int64_t split_last = 0, step_inner = 0, step_outer = 0;
    int64_t rows = 1, outer = 1, inner = 1, dst = 0, dst_rows = 0, dst_outer = 0, dst_inner = 0;
};

struct Vector {
    int32_t index = -1;  // LOAD whose last vector this is, or -1
    int32_t address = 0, dst_group = 0, dst_pixel = 0, dst_vector = 0;
    uint16_t signal = 0;
    bool last = false, pixel_end = false, transpose = false;
};

struct Unpacker {
    Unpack op;
    Nest<3, 1> nest;
    bool active = false, running = false, draining = false;
    unsigned wait = 0;
    bool near = false, some = false;
    int64_t front = 0, beats = 0, skip = 0, position = 0;
    // Vectors on their way: two stages with a bit of `flying` each, the queue, and the output register. `free` counts
    // the places left.
    Vector flight[2], output;
    unsigned flying = 0;
    Fifo<Vector, 8> queue;
    bool valid = false;  // of `output`
    int64_t places = 0, free = 0;
    unsigned align = 4;
    int64_t bus = 16, n = 16;
    // Outputs of the current cycle.
    bool pops = false, stalls = false;

    void configure(int64_t vectors) { places = free = vectors; }
    bool busy() const { return active || free != places; }

    // Simulates a cycle. Returns true if `next`, the offered descriptor, is taken. `leaves`: `output` is taken.
    bool step(const Unpack* next, bool beat, bool leaves) {
        pops = stalls = false;
        if (!next && !busy()) return false;
        const bool outside = front != 0 || !some, have = outside || beat, room = free != 0;
        const bool alone = position <= bus - n;
        if (active && !have && !wait && !(running && near && alone)) {  // it only waits for a beat
            stalls = (running && room) || draining;
            hand_on(false, leaves);
            return false;
        }
        const bool emit = active && running && near && (have || alone) && room;
        const bool last_inner = nest.last(2);
        const int64_t reach = position + (last_inner ? op.step_outer : op.step_inner), ahead = reach >> align;
        const bool pass_end = emit && last_inner && (op.split || nest.last(1));
        const bool shift = have && (draining || pass_end || (running && !near) || (emit && ahead != 0));
        const bool early = pass_end && !some && beat && !nest.last_all() && (walk_align_ - op.before) >= 0;
        const bool pop = (shift && !outside) || early;
        const bool empty = !some || (beats == 1 && front == 0 && beat);
        const bool finish = (pass_end || draining) && empty;
        const bool follow = (wait & 2) || (finish && (draining ? nest.active : !nest.last_all()));
        pops = pop;
        stalls = ((running && room) || draining) && !emit && !have;
        const bool starts = !active && next;

        hand_on(emit, leaves);
        wait = (wait << 1 | unsigned(starts)) & 3;
        if (follow) begin_pass(early);
        else go_on(emit, shift, pop, pass_end, empty, have, reach, ahead);
        if (emit) nest.step();
        if (starts) load(*next);
        else if (active && finish && !follow) active = false;
        return starts;
    }

private:
    int64_t walk_align_ = 0, done_ = 0, line_ = 0;

    void hand_on(bool emit, bool leaves) {
        const bool moves = (!valid || leaves) && queue.readable();
        if (moves) output = queue.head();
        valid = moves || (valid && !leaves);
        queue.step(flying & 2, flight[1], moves);
        flight[1] = flight[0];
        flying = (flying << 1 | unsigned(emit)) & 3;
        free += int64_t(leaves) - int64_t(emit);
        if (!emit) return;
        Vector& vector = flight[0];
        vector.address = int32_t(nest.at(0));
        vector.last = nest.last_all();
        vector.pixel_end = nest.last(2);
        vector.index = vector.last ? op.index : -1;
        vector.signal = vector.last ? op.signal : 0;
        vector.transpose = op.transpose;
        vector.dst_group = int32_t(op.dst_rows), vector.dst_pixel = int32_t(op.dst_outer);
        vector.dst_vector = int32_t(op.dst_inner);
    }

    void go_on(bool emit, bool shift, bool pop, bool pass_end, bool empty, bool have, int64_t reach, int64_t ahead) {
        const bool drained = draining && empty;
        if (emit) {
            position = reach & (bus - 1);
            near = ahead == 0 || (ahead == 1 && have);
            skip = have ? ahead - 1 : ahead;
        } else if (shift) {
            near = skip == 1;
            skip--;
        }
        if (pass_end) front = 0, running = false, draining = !empty;
        else if (shift && front) front--;
        if (pop) some = --beats != 0;
        if (drained) draining = false;
    }

    // Starts a pass with the results of PassWalker in hdl/load/unpack.py. `early`: its first beat is taken at once.
    void begin_pass(bool early) {
        const int64_t origin = walk_align_ - op.before, ahead = (origin & (bus - 1)) + done_;
        front = -(origin >> align);
        beats = ((walk_align_ + op.run_last) >> align) + 1;
        skip = (ahead >> align) + 1;
        position = ahead & (bus - 1);
        running = some = true;
        draining = near = false;
        if (early) some = --beats != 0, near = --skip == 0;
        if (done_ != op.split_last) {
            done_ += n;
            return;
        }
        done_ = 0;
        walk_align_ = (walk_align_ + (line_ ? op.align_row : op.align_line)) & (bus - 1);
        line_ = line_ ? line_ - 1 : op.line_last;
    }

    void load(const Unpack& next) {
        op = next;
        active = true;
        walk_align_ = op.align & (bus - 1), done_ = 0, line_ = op.line_last;
        nest.count[0] = op.rows, nest.count[1] = op.outer, nest.count[2] = op.inner;
        nest.set(0, op.dst, {op.dst_rows, op.dst_outer, op.dst_inner});
        nest.start();
    }
};

// Path of vectors to the scratchpad's port with softmax: the transposer, followed by a register.
struct Transposer {
    struct Column {
        int32_t address = 0, index = -1;
        uint16_t signal = 0;
    };
    struct Group {
        int32_t address = 0, step = 0, jump = 0, panels = 0, index = -1;
        uint16_t signal = 0;
    };

    int64_t n = 16;
    bool port = false;  // `at_port` is valid
    Column at_port;
    uint16_t signal = 0;
    int32_t done = -1;  // instruction that `signal` belongs to, or -1

    bool underway() const { return full_ || padding_ || valids_; }
    bool busy() const { return underway() || port || signal; }
    bool quiet() const { return !underway() && !port && !signal && done < 0; }

    // Simulates a cycle. Returns true if `vector` is taken; `granted`: the scratchpad takes the vector at the port.
    bool step(bool offered, const Vector& vector, bool granted) {
        const bool advance = !port || granted;
        const bool way = underway();
        const bool transposes = offered && vector.transpose;
        const bool take = transposes && !(full_ >> target_ & 1) && !padding_;
        const bool plain = offered && !vector.transpose && !way;
        const bool taken = transposes ? take : plain && advance;

        signal = port && granted ? at_port.signal : 0;
        done = port && granted ? at_port.index : -1;
        if (advance) {
            port = plain || (valids_ & 2);
            if (valids_ & 2) at_port = columns_[1];
            else if (plain) at_port = {vector.address, vector.index, vector.signal};
        }
        if (!way && !take) return taken;
        const unsigned emptied = empty(advance);
        const unsigned filled = fill(take, vector);
        full_ = (full_ | filled) & ~emptied;
        return taken;
    }

private:
    unsigned full_ = 0, target_ = 0, source_ = 0, valids_ = 0;
    int64_t in_ = 0, out_ = 0;
    int32_t following_ = 0, next_ = 0, start_ = 0;
    int32_t panel_in_ = 0, panels_ = 0, panel_out_ = 0;
    bool padding_ = false, fresh_ = true;
    Group groups_[2];
    Column columns_[2];

    unsigned fill(bool take, const Vector& vector) {
        const bool write = take || padding_, end = padding_ ? panel_in_ == panels_ : vector.pixel_end;
        const bool last = write && end && in_ == n - 1;
        const unsigned target = target_;
        if (take) {
            const int32_t address = fresh_ ? vector.address : following_;
            if (in_ == 0 && panel_in_ == 0) {
                following_ = address + vector.dst_group;
                groups_[target].address = address, groups_[target].step = vector.dst_vector;
                groups_[target].jump = vector.dst_pixel;
            }
            groups_[target].panels = panels_ = panel_in_;
            groups_[target].signal = vector.signal, groups_[target].index = vector.index;
            fresh_ = vector.last;
            padding_ = vector.last && !last;
        } else if (last) padding_ = false;
        if (write) in_ = (in_ + end) & (n - 1), panel_in_ = end ? 0 : panel_in_ + 1;
        target_ ^= last;
        return last ? 1u << target : 0;
    }

    unsigned empty(bool advance) {
        const unsigned source = source_;
        const bool read = (full_ >> source & 1) && advance, end = out_ == n - 1;
        const bool panels_end = panel_out_ == groups_[source].panels, last = read && end && panels_end;
        if (advance) {
            columns_[1] = columns_[0];
            valids_ = (valids_ << 1 | unsigned(read)) & 3;
        }
        if (read) {
            const Group& group = groups_[source];
            Column& column = columns_[0];
            column.address = out_ == 0 && panel_out_ == 0 ? group.address : next_;
            column.signal = last ? group.signal : 0;
            column.index = last ? group.index : -1;
            if (out_ == 0) start_ = column.address + group.jump;
            next_ = end ? start_ : column.address + group.step;
            if (end) panel_out_ = panels_end ? 0 : panel_out_ + 1;
            out_ = (out_ + 1) & (n - 1);
            source_ ^= last;
        }
        return last ? 1u << source : 0;
    }
};

// Path of vectors to the scratchpad's port without softmax: direct, with a register for the signal.
struct PlainPort {
    uint16_t signal = 0;
    int32_t done = -1;

    void step(bool written, const Vector& vector) {
        signal = written ? vector.signal : 0;
        done = written ? vector.index : -1;
    }
};

}  // namespace weft
