// What the units of hdl/core.py do in each cycle of a program, for weft.sim.rtl.trace: the signals by which they tell
// each other. Names are those of the components' ports, with __ as Verilator spells it; `OBSERVED` in rtl_trace.py
// makes them visible.
#pragma once

#include <cstdint>
#include <vector>

#include "Vtop.h"
#include "Vtop___024root.h"

struct Observer {
    struct Change {
        uint64_t cycle, word;
    };
    std::vector<Change> changes;  // from a cycle on, the word of every cycle; the last one has the end and no word

    // Once a cycle, with everything settled. Cycle 0 is that in which the program starts: the first one seen is 1.
    void sample(const Vtop& top) {
#define SEEN(unit, port) uint64_t(top.rootp->weft__DOT__##unit##__DOT__##port)
        const bool enable = SEEN(counters, enable);
        if (enable && !enabled_) changes.clear(), cycle_ = 0;
        if (enable || enabled_) cycle_++;
        if (enable) {
            const uint64_t word = queues(top) | moves(top) << 12;
            if (!enabled_ || word != changes.back().word) changes.push_back({cycle_, word});
        } else if (enabled_) changes.push_back({cycle_, 0});
        enabled_ = enable;
    }

private:
    bool enabled_ = false;
    uint64_t cycle_ = 0;

    // Four bits each, a bit a queue: an instruction waits for semaphores, is offered to the unit, would be accepted.
    static uint64_t queues(const Vtop& top) {
#define QUEUES(port) \
    (SEEN(load_queue, port) | SEEN(mm_queue, port) << 1 | SEEN(vec_queue, port) << 2 | SEEN(store_queue, port) << 3)
        return QUEUES(waiting) | QUEUES(instruction___05Fvalid) << 4 | QUEUES(instruction___05Fready) << 8;
    }

    // The load unit writes a vector, the matrix unit a row of C; memory has confirmed all of an instruction of the store
    // unit; a beat is read, one is written; the last results of an instruction of the vector unit are out.
    static uint64_t moves(const Vtop& top) {
        return (SEEN(scratchpad, write___05F1___05Fvalid) & SEEN(scratchpad, write___05F1___05Fready)) |
               SEEN(counters, write) << 1 | SEEN(store__DOT__done, r_en) << 2 |
               uint64_t(top.m_axi_rvalid & top.m_axi_rready) << 3 | uint64_t(top.m_axi_wvalid & top.m_axi_wready) << 4 |
               SEEN(vec__DOT__writer, busy) << 5;
    }
#undef QUEUES
#undef SEEN
};
