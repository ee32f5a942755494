// Shared parts of the cycle model: the timing of small hardware components, and the signals between units in a cycle.
// Nothing here holds data, only addresses.
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

// hdl/lib/queues.py. `valid` and `full` are registers: read `ready` and `valid` before calling `step`.
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

// amaranth.lib.fifo.SyncFIFO: an item can be read in the cycle after it is written. Call `step` at the end of a cycle.
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

// hdl/lib/loopnest.py: `LOOPS` loops, outermost first, with a stride for each of `VALUES` values.
template <unsigned LOOPS, unsigned VALUES>
struct Nest {
    int64_t count[LOOPS]{}, index[LOOPS]{}, stride[VALUES][LOOPS]{}, level[VALUES][LOOPS]{};
    bool active = false;

    void start() {
        for (unsigned k = 0; k < LOOPS; k++) index[k] = 0;
        active = true;
    }
    // Sets the start and strides of one value.
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
    // Advances by one iteration. Returns the loop that advanced; all loops inside it restart.
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

// Events scheduled for one future cycle.
struct Slot {
    uint8_t vec_write;  // 1 + bank of the scratchpad that the vector unit writes
    bool mm_done;       // an Mm is done, and signals `mm_signal`
    bool vec_end;       // last result of the vector unit's instruction
    bool vec_row, vec_under_way;  // see vector.h
    uint16_t mm_signal;
};

constexpr unsigned HORIZON = 4096;  // cycles; a power of two, more than twice the longest pipeline

class Schedule {
public:
    Slot& at(Cycle cycle) { return slots_[cycle % HORIZON]; }
    Slot take(Cycle cycle) {
        Slot& slot = at(cycle);
        const Slot taken = slot;
        slot = Slot{};
        return taken;
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

// Requests of one cycle that compete for banks of the scratchpad: 1 + bank, or 0 for no request.
struct Competition {
    unsigned b = 0, a = 0, vec = 0;
};

struct Burst {
    uint32_t address = 0;
    uint16_t beats = 0;
    uint8_t id = 0;
};
enum Reader { FETCHES, LOADS, PAGES };

// An instruction of the program, or one execution of it in a queue.
struct Instruction {
    int opcode;
    const int64_t* fields;
    int32_t index = 0;        // in the program
    uint32_t values[2] = {};  // values of the registers that it names, in the order of its fields
};

template <class Word>
const Word& fields_of(const Instruction& instruction) {
    return *reinterpret_cast<const Word*>(instruction.fields);
}

}  // namespace weft
