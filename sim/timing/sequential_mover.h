// The sequential core's memory unit (hdl/sequential/mover.py) with the memory of sim/rtl/rtl_model.cpp. At most one bus
// word is in flight. Cycles that only wait for memory, or that move bytes of one bus word to a vector, are simulated in
// one step.
#pragma once

#include <algorithm>
#include <cstring>

#include "common.h"

namespace weft::sequential {

constexpr unsigned BUS_MOST = 128, VECTOR_MOST = 128;

// The vector register of hdl/sequential/core.py: a shift register of bytes.
struct ShiftVector {
    uint8_t bytes[VECTOR_MOST]{};
    unsigned first = 0, n = 0;

    void push(uint8_t byte) {
        bytes[first] = byte;
        turn();
    }
    void turn() { first = (first + 1) & (n - 1); }
    void copy(uint8_t* vector) const {
        std::memcpy(vector, bytes + first, n - first);
        std::memcpy(vector + n - first, bytes, first);
    }
};

// Timing of a memory with one request at a time.
struct Link {
    Cycle latency = 30;
    double rate = 0, tokens = 0, bus = 16;  // bytes a cycle (0: no limit); bytes available; bytes of a word
    Cycle settled = 0;                      // cycle up to which `tokens` is current

    // Takes tokens for a bus word. Returns the first cycle from `at` on that has enough.
    Cycle grant(Cycle at) {
        if (rate == 0) return at;
        for (; settled < at && tokens < bus + rate; settled++) tokens += rate;
        for (settled = at; tokens < bus; settled++) tokens += rate;
        tokens -= bus;
        return settled;
    }
};

// Timing of boards/flash/controller.py behind hdl/sequential/mover.py; parameters as in sim/memories.py.
struct Flash {
    uint32_t window = 0, page = 0;  // window 0: no flash
    Cycle jump = 0, word = 0;
    unsigned bus = 4;

    bool holds(uint32_t address) const { return window && address >= window; }
    // Returns the cycle of the answer to a request in cycle `at`.
    Cycle read(uint32_t address, Cycle at) {
        constexpr Cycle ARBITER = 1;
        const Cycle taken = at + 1 + ARBITER, answers = address == next_ ? std::max(taken + 1, ready_) : taken + jump;
        next_ = (address + bus) % page ? address + bus : 0, ready_ = answers + word;
        return answers;
    }

private:
    uint32_t next_ = 0;  // address of the prefetched word; 0: none
    Cycle ready_ = 0;
};

class Mover {
public:
    unsigned n = 4, bus = 4;
    uint8_t* dram = nullptr;
    uint64_t dram_bytes = 0;
    Link link;
    Flash flash;
    ShiftVector* gathered = nullptr;
    const uint8_t* vector = nullptr;
    bool counted = false;  // count waits, because the processor waits
    uint64_t waits = 0, read_beats = 0, write_beats = 0, written = 0;
    bool outside = false;  // an access was outside memory
    std::vector<uint64_t> marks;
    std::vector<Cycle> marked;

    bool idle() const { return !reading_ && !writing_ && !strobes_; }
    bool moved() const { return !left_; }
    bool length_zero() const { return !length_; }
    bool here() const { return here_; }
    Cycle now() const { return now_; }
    uint32_t word() const {
        uint32_t word;
        std::memcpy(&word, word_ + (lane_ & ~3u), sizeof word);
        return word;
    }

    void advance(Cycle to) {
        while (now_ < to) go(to, next());
    }
    // Simulates until a condition holds. Returns false if it never will.
    template <class Condition>
    bool until(Condition holds) {
        counted = true;
        while (!holds()) {
            const Cycle at = next();
            if (at == NEVER) break;
            go(NEVER, at);
        }
        counted = false;
        return holds();
    }
    // Sets one of the inputs in cycle `at`.
    void give(unsigned input, uint32_t value, Cycle at) {
        advance(at);
        cycle(int(input), value, false);
    }
    // The processor takes a word in cycle `at`.
    void take(Cycle at) {
        advance(at);
        cycle(-1, 0, true);
    }

private:
    Cycle now_ = 0, answers_ = 0, confirms_ = 0;
    uint32_t address_ = 0;  // of the bus word
    unsigned lane_ = 0, left_ = 0;
    uint32_t remain_ = 0, skip_ = 0, length_ = 0;
    uint8_t fill_ = 0, word_[BUS_MOST]{};
    unsigned __int128 strobes_ = 0;
    bool here_ = false, reading_ = false, writing_ = false, out_ = false, flushing_ = false;
    bool narrow_ = false, upper_ = false;  // bytes hold two int4 values; the lower value has been taken

    unsigned __int128 strobe(unsigned lane) const { return (unsigned __int128)(1) << lane; }
    bool full() const { return flushing_ || (strobes_ & strobe(bus - 1)); }
    bool from_memory() const { return left_ && length_ && !out_ && !skip_ && remain_; }
    // Returns true if a byte moves in this cycle.
    bool steps() const {
        if (!left_) return false;
        return out_ && length_ ? !writing_ && !full() : !from_memory() || here_;
    }
    // Returns the first cycle in which the state changes without input.
    Cycle next() const {
        if (steps() || (!here_ && !reading_ && remain_)) return now_;
        if (strobes_ ? !writing_ && full() : flushing_) return now_;
        return std::min(reading_ ? answers_ : NEVER, writing_ ? confirms_ : NEVER);
    }
    // Advances by at least one cycle, at most to `to`; `at` is the result of `next`.
    void go(Cycle to, Cycle at) {
        if (at > now_) {
            to = std::min(at, to);
            if (counted) waits += to - now_;  // a request is in flight, else nothing would change
            now_ = to;
        } else if (here_ && from_memory() && !narrow_) {
            const unsigned most = std::min({left_, length_, remain_, bus - lane_});
            const unsigned bytes = unsigned(std::min<Cycle>(most, to - now_));
            for (unsigned k = 0; k < bytes; k++) gathered->push(word_[lane_ + k]);
            left_ -= bytes, length_ -= bytes, remain_ -= bytes, lane_ += bytes, now_ += bytes;
            if (lane_ == bus) lane_ = 0, here_ = false, address_ += bus;
        } else {
            cycle(-1, 0, false);
        }
    }

    void cycle(int input, uint32_t value, bool taken) {
        const bool answered = reading_ && now_ == answers_, confirmed = writing_ && now_ == confirms_;
        const bool inside = left_ && length_, step = steps(), takes = step && from_memory();
        const bool gives = step && out_ && inside, sets = input == TO_MEMORY_REMAIN;
        const bool asks = !here_ && !reading_ && remain_ && !sets, sends = !writing_ && strobes_ && full();
        const bool whole = takes && (upper_ || !narrow_);
        const bool ends = (whole && lane_ == bus - 1) || (taken && lane_ / 4 == bus / 4 - 1);
        if (counted && (reading_ || writing_) && !step) waits++;
        flushing_ = input == TO_MEMORY_FLUSH || (flushing_ && strobes_);
        if (step) {
            if (!out_) gathered->push(takes ? taken_byte() : fill_);
            if (gives) word_[lane_] = vector[n - left_], strobes_ |= strobe(lane_);
            left_--;
            if (inside) {
                length_--;
                if (skip_) skip_--;
            }
        }
        const bool remains = remain_ != 0;
        if (takes) upper_ = narrow_ && !upper_;
        if (whole || gives) lane_ = (lane_ + 1) & (bus - 1);
        if (taken) lane_ = (lane_ + 4) & (bus - 1);
        if (whole || taken) remain_ = (remain_ - (taken ? 4 : 1)) & 0xFFFFFF;
        if (asks) {
            reading_ = true;
            answers_ = flash.holds(address_) ? flash.read(address_, now_) : link.grant(now_ + 1 + link.latency);
        }
        if (sends) send();
        if (ends || sets) here_ = false;
        if (answered) read(remains && !sets);
        if (confirmed) writing_ = false, strobes_ = 0;
        if (ends || confirmed) address_ += bus;
        set(input, value);
        now_++;
    }

    void set(int input, uint32_t value) {
        if (input == TO_MEMORY_REMAIN) remain_ = value & 0xFFFFFF;
        if (input == TO_MEMORY_SKIP) skip_ = value & 0xFFFF;
        if (input == TO_MEMORY_LENGTH) length_ = value & 0xFFFF;
        if (input == TO_MEMORY_FILL) fill_ = uint8_t(value);
        if (input == TO_MEMORY_ADDRESS) address_ = value & ~(bus - 1), lane_ = value & (bus - 1), upper_ = false;
        if (input == TO_MEMORY_NARROW) narrow_ = value & 1;
        if (input == TO_MEMORY_GATHER || input == TO_MEMORY_SCATTER) left_ = n, out_ = input == TO_MEMORY_SCATTER;
    }

    uint8_t taken_byte() const {
        const uint8_t byte = word_[lane_];
        return narrow_ ? uint8_t(((byte >> 4 * upper_ & 15) ^ 8) - 8) : byte;
    }
    bool inside() {
        const bool fits = uint64_t(address_) + bus <= dram_bytes;
        outside |= !fits;
        return fits;
    }
    void read(bool wanted) {
        reading_ = false, here_ = wanted;
        read_beats++;
        if (inside()) std::memcpy(word_, dram + address_, bus);
    }
    // Memory takes the address 1 cycle later, and the word at least 2 cycles later.
    void send() {
        const Cycle taken = link.grant(now_ + 2);
        writing_ = true, confirms_ = taken + link.latency;
        write_beats++;
        if (!inside()) return;
        for (unsigned lane = 0; lane < bus; lane++)
            if (strobes_ & strobe(lane)) dram[address_ + lane] = word_[lane], written++;
        while (marked.size() < marks.size() && written >= marks[marked.size()]) marked.push_back(taken);
    }
};

}  // namespace weft::sequential
