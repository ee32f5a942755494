// The path from a core to a board's SDRAM controller: boards/bus/axi.py and boards/bus/port.py, without
// requests from the arbiter's other ports.
#pragma once

#include "common.h"
#include "sdram.h"

namespace weft {

// hdl/lib/queues.py, reduced to the number of words.
struct BufferedLevel {
    unsigned most = 1, inner = 0;
    bool readable = false;

    bool writable() const { return inner != most; }
    void step(bool write, bool read) {
        const bool move = inner != 0 && (!readable || read);
        inner += unsigned(write) - unsigned(move);
        readable = move || (readable && !read);
    }
};

// Splits bursts into pieces, at most one a cycle.
struct Pieces {
    struct Piece {
        uint8_t id = 0;
        bool last = false;
        uint32_t more = 0, address = 0;
    };

    unsigned align = 4, inside = 4, page = 8;
    bool active = false, valid = false;
    uint8_t id = 0;
    uint32_t word = 0, more = 0;
    Piece piece;

    uint32_t room() const { return ~word & ((1u << inside) - 1); }
    bool ready(bool granted) const { return !active || ((!valid || granted) && more <= room()); }
    void step(bool offered, const Burst& burst, bool granted) {
        const bool move = !valid || granted, takes = ready(granted);
        if (!active && !offered && !valid) return;
        if (move) {
            const bool last = more <= room();
            valid = active;
            piece = {id, last, last ? more : room(), word << align};
        }
        if (takes) {
            active = offered;
            if (offered) id = burst.id, word = burst.address >> align, more = uint32_t(burst.beats) - 1;
        } else if (move) {
            const uint32_t mask = (1u << inside) - 1, in_page = (1u << page) - 1, passed = room() + 1;
            word = (word & ~in_page) | (((word | mask) + 1) & in_page);
            more -= passed;
        }
    }
};

// The order of ports whose words come next, reduced to whether a port's words are due.
struct Turns {
    Fifo<uint32_t, 64> queue;
    bool valid = false;
    uint32_t more = 0;

    void step(bool push, uint32_t beats, bool word) {
        const bool move = !valid || (word && more == 0);
        const bool pop = move && queue.readable();
        if (move) {
            valid = queue.readable();
            if (valid) more = queue.head();
        } else if (word) more--;
        queue.step(push, beats - 1, pop);
    }
};

struct SdramBoard {
    struct Order {
        uint8_t id = 0;
        bool last = false;
        uint32_t more = 0;
    };

    SdramController chip;
    // Outputs to the core in a cycle.
    bool read_ready_for_address = false, write_ready_for_address = false, write_ready = false;
    bool read_valid = false, response_valid = false;
    uint8_t read_id = 0;

    void configure(const SdramParameters& p, int64_t bus_bytes) {
        chip.configure(p, bus_bytes);
        longest_ = unsigned(std::max<int64_t>(p.piece_bytes / bus_bytes, 1));
        for (Pieces* pieces : {&reads_, &writes_}) {
            pieces->align = log2_of(uint64_t(bus_bytes)), pieces->inside = log2_of(longest_);
            pieces->page = log2_of(uint64_t(p.page_bytes / bus_bytes));
        }
        read_words_.most = write_words_.most = 2 * longest_;
        room_ = 2 * longest_;
        read_order_.depth = write_order_.depth = unsigned(p.pieces);
        read_turns_.queue.depth = write_turns_.queue.depth = reports_depth_ = unsigned(p.commands);
    }

    bool idle() const { return settled_; }

    void drive(Cycle cycle) {
        if (cycle != stepped_ + 1) chip.rest(cycle - stepped_ - 1), stepped_ = cycle - 1;
        const bool free = commands_.ready(), asks_read = reads_.valid && fits_, asks_write = there_;
        grants_read_ = free && asks_read && (wrote_ || !asks_write);
        grants_write_ = free && asks_write && (!wrote_ || !asks_read);
        read_ready_for_address = reads_.ready(grants_read_), write_ready_for_address = writes_.ready(grants_write_);
        write_ready = write_words_.writable();
        read_valid = read_words_.readable;
        if (read_valid) read_id = read_order_.head().id;
        response_valid = reports_ && write_order_.head().last;
    }

    // `read`, `write`: offered bursts; `beat`, `left`: a beat was taken from, or given to, the core.
    void step(Cycle cycle, const Burst* read, const Burst* write, bool beat, bool left) {
        if (cycle != stepped_ + 1) drive(cycle);
        stepped_ = cycle;
        const bool written = chip.written, command_ready = chip.command_ready();
        const bool word_written = write_turns_.valid && write_words_.readable && chip.write_ready();
        const bool word_read = read_turns_.valid && chip.read_valid();
        const PortCommand* command = command_valid_ && command_ready ? &command_ : nullptr;
        chip.step(command, word_written, word_read);
        const bool passes = arbitrate(command_ready, written, word_written, word_read);
        bridge(passes, written, word_written, word_read, beat, left);
        reads_.step(read != nullptr, read ? *read : Burst{}, grants_read_);
        writes_.step(write != nullptr, write ? *write : Burst{}, grants_write_);
        settled_ = !reads_.active && !reads_.valid && !writes_.active && !writes_.valid && !commands_.valid &&
                   !command_valid_ && !read_order_.readable() && !write_order_.readable() && !here_ && !reported_ &&
                   !read_turns_.valid && !write_turns_.valid && fits_ && chip.idle();
        read_valid = response_valid = false;
    }

private:
    unsigned longest_ = 16, room_ = 32, here_ = 0, reports_ = 0, reported_ = 0, reports_depth_ = 16;
    uint32_t beat_ = 0;
    bool fits_ = true, there_ = false, wrote_ = false, grants_read_ = false, grants_write_ = false, settled_ = true;
    Pieces reads_, writes_;
    BufferedLevel read_words_, write_words_;
    Fifo<Order, 64> read_order_, write_order_;
    SkidBuffer<PortCommand> commands_;
    Turns read_turns_, write_turns_;
    bool command_valid_ = false;
    PortCommand command_;
    Cycle stepped_ = 0;

    // Returns true if a command is taken from the bridge.
    bool arbitrate(bool command_ready, bool written, bool word_written, bool word_read) {
        const bool free = !command_valid_ || command_ready;
        const bool room = read_turns_.queue.writable() && write_turns_.queue.writable() && reported_ != reports_depth_;
        const bool taken = free && room && commands_.valid;
        const PortCommand& chosen = commands_.out;
        read_turns_.step(taken && !chosen.write, chosen.beats, word_read);
        write_turns_.step(taken && chosen.write, chosen.beats, word_written);
        reported_ += unsigned(taken && chosen.write) - unsigned(written);
        if (free) {
            command_valid_ = taken;
            if (taken) command_ = chosen;
        }
        return taken;
    }

    void bridge(bool passes, bool written, bool word_written, bool word_read, bool beat, bool left) {
        const Pieces::Piece& read = reads_.piece;
        const Pieces::Piece& write = writes_.piece;
        const bool fits = room_ >= longest_ && read_order_.writable() && !grants_read_;
        const bool there = writes_.valid && here_ > write.more && write_order_.writable() && !grants_write_;
        const Pieces::Piece& chosen = grants_write_ ? write : read;
        const bool asks = grants_read_ || grants_write_;
        commands_.step(asks, {grants_write_, chosen.address, chosen.more + 1}, passes);
        if (asks) wrote_ = grants_write_;
        room_ += unsigned(left) - (grants_read_ ? read.more + 1 : 0);
        const bool ends = left && beat_ == read_order_.head().more;
        if (left) beat_ = ends ? 0 : beat_ + 1;
        read_order_.step(grants_read_, {read.id, read.last, read.more}, ends);
        read_words_.step(word_read, left);
        here_ += unsigned(beat) - (grants_write_ ? write.more + 1 : 0);
        const bool taken = reports_ != 0;
        reports_ += unsigned(written) - unsigned(taken);
        write_order_.step(grants_write_, {write.id, write.last, write.more}, taken);
        write_words_.step(beat, word_written);
        fits_ = fits, there_ = there;
    }
};

}  // namespace weft
