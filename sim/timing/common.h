// What all units of the cycle model share: small parts of hardware as far as they take time, and what units tell each
// other within a cycle. Nothing here holds data, only where data is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "generated.h"  // enumerations, parameters and instruction fields, from weft.hdl: see library.py

namespace weft {

using Cycle = uint64_t;
constexpr Cycle NEVER = ~Cycle(0);
constexpr unsigned UNITS = QUEUE_COUNT;

inline unsigned log2_of(uint64_t value) {
    unsigned bits = 0;
    while (uint64_t(1) << bits < value) bits++;
    return bits;
}

// hdl/lib/queues.py. `valid` and `full` are its registers, so a sender asks `ready` and a receiver `valid` before
// `step`.
template <class T>
struct SkidBuffer {
    T out{}, kept{};
    bool valid = false, full = false;

    bool ready() const { return !full; }
    void step(bool offered, const T& payload, bool taken) {
        if (!valid || taken) {
            if (full) out = kept;
            else if (offered) out = payload;
            valid = offered || full;
            full = false;
        } else if (offered && !full) {
            kept = payload;
            full = true;
        }
    }
};

// amaranth.lib.fifo.SyncFIFO: what is written can be read in the next cycle. `step` at the end of a cycle.
template <class T, unsigned MOST>
struct Fifo {
    T items[MOST]{};
    unsigned depth = MOST, level = 0, first = 0;

    bool readable() const { return level != 0; }
    bool writable() const { return level != depth; }
    const T& head() const { return items[first]; }
    T& head() { return items[first]; }
    void push(const T& item) { items[(first + level++) % MOST] = item; }
    void pop() { first = (first + 1) % MOST, level--; }
    void step(bool write, const T& item, bool read) {
        if (write) push(item);
        if (read) pop();
    }
};

// hdl/lib/loopnest.py: `LOOPS` loops, outermost first, and values that they move.
template <unsigned LOOPS, unsigned VALUES>
struct Nest {
    int64_t count[LOOPS]{}, index[LOOPS]{}, stride[VALUES][LOOPS]{}, level[VALUES][LOOPS]{};
    bool active = false;

    void start() {
        for (unsigned k = 0; k < LOOPS; k++) index[k] = 0;
        active = true;
    }
    // Set one value's strides; a loop that does not move it has 0.
    void set(unsigned value, int64_t base, const int64_t (&strides)[LOOPS]) {
        for (unsigned k = 0; k < LOOPS; k++) stride[value][k] = strides[k], level[value][k] = base;
    }
    int64_t at(unsigned value) const { return level[value][LOOPS - 1]; }
    bool first(unsigned loop) const { return index[loop] == 0; }
    bool last(unsigned loop) const { return index[loop] == count[loop] - 1; }
    bool last_from(unsigned loop) const {
        for (unsigned k = loop; k < LOOPS; k++)
            if (!last(k)) return false;
        return true;
    }
    bool last_all() const { return last_from(0); }
    // Returns the loop that went on; those further in are at their start again.
    unsigned step() {
        constexpr unsigned inmost = LOOPS - 1;
        if (index[inmost] != count[inmost] - 1) {
            index[inmost]++;
            for (unsigned value = 0; value < VALUES; value++) level[value][inmost] += stride[value][inmost];
            return inmost;
        }
        unsigned k = inmost;
        while (index[k] == count[k] - 1) {
            index[k] = 0;
            if (k-- == 0) {
                active = false;
                return 0;
            }
        }
        index[k]++;
        for (unsigned value = 0; value < VALUES; value++) {
            const int64_t now = level[value][k] += stride[value][k];
            for (unsigned inner = k + 1; inner < LOOPS; inner++) level[value][inner] = now;
        }
        return k;
    }
};

// What is known to happen at one cycle in the future.
struct Slot {
    uint8_t vec_write;  // 1 + bank of the scratchpad that the vector unit writes
    bool mm_done;  // an Mm is done, which gives `mm_signal`
    bool vec_end;  // the last result of the vector unit's instruction
    bool vec_row, vec_under_way;  // see vector.h
    uint16_t mm_signal;
};

constexpr unsigned HORIZON = 4096;  // cycles; a power of two, more than twice the longest pipeline

class Schedule {
public:
    Slot& at(Cycle cycle) { return slots_[cycle % HORIZON]; }
    Slot take(Cycle cycle) {
        Slot& slot = at(cycle);
        const Slot found = slot;
        slot = Slot{};
        return found;
    }

private:
    Slot slots_[HORIZON]{};
};

struct Interval {
    int32_t unit, instruction, kind;
    int32_t pad;
    Cycle start, end;
};
enum IntervalKind { WAITS, RUNS };

// The requests of one cycle that compete for a bank of the scratchpad; 0 is none, else 1 + bank.
struct Competition {
    unsigned b = 0, a = 0, vec = 0;
};

struct Burst {
    uint32_t address = 0;
    uint16_t beats = 0;
    uint8_t id = 0;
};
enum Reader { FETCHES, LOADS, PAGES };

// An instruction of the program, or one that has gone to its queue: then it is there once for each time.
struct Instruction {
    int opcode;
    const int64_t* fields;
    int32_t index = 0;        // in the program
    uint32_t values[2] = {};  // what the registers hold that it names, in the order of its fields
};

template <class Word>
const Word& fields_of(const Instruction& instruction) {
    return *reinterpret_cast<const Word*>(instruction.fields);
}

}  // namespace weft
