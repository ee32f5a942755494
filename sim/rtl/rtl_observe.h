// Records handshakes of the units of hdl/core.py in each cycle of a program, for weft.sim.rtl.trace. Names are those of
// the components' ports, with __ in Verilator's spelling; `OBSERVED` in trace.py makes the signals visible.
#pragma once

#include <cstdint>
#include <vector>

#include "Vtop.h"
#include "Vtop___024root.h"

struct Observer {
    struct Change {
        uint64_t cycle, word;
    };
    std::vector<Change> changes;  // first cycle and word of each stretch of equal words; the last entry marks the end

    // Call once a cycle, after all signals have settled. The program starts in cycle 0, and the first sample is cycle
    // 1.
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

    // Three fields of 4 bits, one per queue: an instruction waits for semaphores; is offered; the unit is ready.
    static uint64_t queues(const Vtop& top) {
#define QUEUES(port) \
    (SEEN(load_queue, port) | SEEN(mm_queue, port) << 1 | SEEN(vec_queue, port) << 2 | SEEN(store_queue, port) << 3)
        return QUEUES(waiting) | QUEUES(instruction___05Fvalid) << 4 | QUEUES(instruction___05Fready) << 8;
    }

    // Bits from 0: LOAD writes a vector; MM writes a row of C; a STORE is confirmed by memory; a beat is read; a beat
    // is written; the vector unit's writer is busy between an instruction's last results and its signal.
    static uint64_t moves(const Vtop& top) {
        return (SEEN(scratchpad, write___05F1___05Fvalid) & SEEN(scratchpad, write___05F1___05Fready)) |
               SEEN(counters, write) << 1 | SEEN(store__DOT__done, r_en) << 2 |
               uint64_t(top.m_axi_rvalid & top.m_axi_rready) << 3 | uint64_t(top.m_axi_wvalid & top.m_axi_wready) << 4 |
               SEEN(vec__DOT__writer, busy) << 5;
    }
#undef QUEUES
#undef SEEN
};
