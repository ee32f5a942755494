// Instruction fetch (hdl/control/fetch.py), queues and semaphores (hdl/control/semaphores.py).
#pragma once

#include "common.h"
#include "memory.h"
#include "sequencer.h"

namespace weft {

struct Semaphores {
    uint8_t count[SEMAPHORE_COUNT]{};
    uint16_t available = 0;

    // A semaphore in both masks of a cycle does not change.
    void step(uint16_t given, uint16_t taken) {
        for (unsigned changed = given ^ taken; changed; changed &= changed - 1) {
            const unsigned k = unsigned(__builtin_ctz(changed));
            count[k] = uint8_t(taken >> k & 1 ? count[k] - 1 : count[k] + 1);
            available = uint16_t(count[k] ? available | 1u << k : available & ~(1u << k));
        }
    }
};

// In-order queue of one unit. While `granted`, it offers instruction `word` to the unit.
struct Dispatcher {
    int32_t queue[64]{};
    unsigned depth = 4, level = 0, first = 0;
    bool head = false, granted = false, full = false;
    int32_t word = -1;
    uint16_t wait = 0;
    Cycle since = 0;  // cycle in which `word` reached the head

    bool empty() const { return level == 0 && !head; }
    bool waiting(uint16_t available) const { return head && !granted && (wait & ~available); }

    // Simulates a cycle. Returns true if the state changed.
    bool step(Cycle now, uint16_t available, bool accepted, int32_t arrived, const std::vector<Instruction>& program) {
        if (arrived < 0 && !accepted && (head ? granted || (wait & ~available) : !level)) return false;
        const bool shallow = depth == 1;
        const bool taken = shallow ? accepted : level && (!head || accepted);
        granted = head && !(wait & ~available) && !accepted;
        if ((arrived >= 0) != taken) full = arrived >= 0 && level == depth - 1;
        if (arrived >= 0) queue[(first + level++) % 64] = arrived;
        if (shallow) {
            if (taken) level--, first = (first + 1) % 64;
            head = level != 0;
            if (arrived >= 0) show(now, arrived, program);
        } else {
            const bool stays = head && !accepted;
            if (taken) {
                show(now, queue[first], program);
                first = (first + 1) % 64, level--;
            }
            head = taken || stays;
        }
        return true;
    }

private:
    void show(Cycle now, int32_t index, const std::vector<Instruction>& program) {
        word = index;
        wait = uint16_t(fields_of<Header>(program[size_t(index)]).wait);
        since = now + 1;
    }
};

// Beats are only counted: their contents follow from their order.
struct Fetch {
    const std::vector<Instruction>* program = nullptr;
    std::vector<Instruction>* passed = nullptr;  // instructions that have entered queues, in order
    Sequencer sequencer;
    bool running = false, ask = false;
    bool lost = false;  // the program jumped outside its instructions
    uint32_t entry = 0, address = 0;
    Burst request;
    unsigned bus = 16, burst = 8, pending = 0, level = 0, left = 0;
    unsigned coming = 0, stale = 0;  // beats in flight, and those of them that a jump invalidated
    bool asked = false;              // a request was sent since the last jump
    bool block = false, block_valid = false;  // the prefetch buffer is block RAM with an output register
    unsigned parts = 4, splits = 1;
    bool second = false;  // skip the first part of the next beat
    uint32_t part = 0;    // next part to enter `skid`
    SkidBuffer<uint32_t> skid;

    void configure(const Parameters& p, const uint8_t* dram, uint64_t dram_bytes) {
        bus = unsigned(p.bus_bytes);
        burst = unsigned(p.fetch_burst_bytes > p.bus_bytes ? p.fetch_burst_bytes / p.bus_bytes : 1);
        block = int64_t(burst) * p.fetch_bursts >= p.fetch_block_depth;
        bursts_ = unsigned(p.fetch_bursts);
        page_ = uint32_t(p.fetch_page), word_bytes_ = uint32_t(p.word_bytes);
        parts = unsigned(p.word_bytes > p.bus_bytes ? p.word_bytes / p.bus_bytes : 1);
        part_shift_ = log2_of(parts), bus_shift_ = log2_of(bus);
        splits = unsigned(p.bus_bytes > p.word_bytes ? p.bus_bytes / p.word_bytes : 1);
        sequencer.configure(p, dram, dram_bytes);
    }
    void start(uint32_t at) {
        entry = address = at / bus * bus, running = true;
        // The part with the END of the list's previous program may be left over.
        skid.valid = skid.full = still = asked = second = false;
        left = part = 0;
        sequencer.start(address);
    }
    bool idle() const { return !running && pending == 0 && coming == 0; }
    // Nothing changes until a beat arrives or queue `blocked_by` has room.
    bool still = false;
    int blocked_by = -1;
    bool sleeps(bool beat, const Dispatcher (&queues)[UNITS]) const {
        return still && !beat && (blocked_by < 0 || queues[blocked_by].full);
    }

    // Returns the index in `passed` of the instruction that enters its queue in this cycle, or -1.
    int32_t step(bool beat, bool request_taken, const Dispatcher (&queues)[UNITS]) {
        const bool buffered = block ? block_valid : level != 0;
        const bool part_valid = left != 0, part_taken = part_valid && skid.ready();
        const bool beat_ready = left == 0 || (part_taken && left == 1);
        const bool popped = buffered && (beat_ready || !running);
        const bool beat_taken = buffered && running && beat_ready;
        const unsigned whole = burst - ((address >> bus_shift_) & (burst - 1));
        const unsigned beats = sequencer.reads ? (READ_LENGTH > bus ? READ_LENGTH / bus : 1) : whole;
        const bool drained = pending == 0, room = pending <= burst * (bursts_ - 1);
        const bool new_page = (address & (page_ - 1)) == 0, jump = sequencer.jump;
        const bool space = coming <= burst * (2 * bursts_ - 1);  // there is no other limit on stale beats
        const bool issue = running && !ask && room && space && (!new_page || (drained && !part_valid && !skid.valid)) && !jump &&
                           !(sequencer.reads && asked);
        const bool wanted = stale == 0;

        const bool ran = running;
        int32_t arrived = -1;
        bool skid_taken = false;
        blocked_by = -1;
        sequencer.moved = false;
        if (running && skid.valid && !sequencer.waits()) skid_taken = take(queues, arrived);
        still = !beat && !popped && !issue && !ask && !skid_taken && !part_taken && running == ran && !moving();
        skid.step(part_valid && skid.ready(), part, skid_taken);
        part += part_taken;
        if (beat_taken) left = splits - unsigned(second), second = false;
        else if (part_taken) left--;
        buffer(beat && wanted, popped);
        pending += (issue ? beats : 0) - popped;
        if (request_taken) ask = false;
        if (issue) {
            ask = asked = true;
            request = {address, uint16_t(beats), FETCHES};
            address += beats * bus;
        }
        coming += (issue ? beats : 0) - beat;
        if (beat && !wanted) stale--;
        if (jump) land();
        sequencer.tick();
        still = still && !sequencer.moved;
        return arrived;
    }

private:
    unsigned bursts_ = 4, part_shift_ = 0, bus_shift_ = 0;
    uint32_t page_ = 4096, word_bytes_ = 64;

    bool moving() const { return block && level != 0 && !block_valid; }

    // Handles the part at the output of `skid`. Returns true if it is taken; sets `arrived` to the result of `step`.
    bool take(const Dispatcher (&queues)[UNITS], int32_t& arrived) {
        if (sequencer.reads) return sequencer.take_words();
        const Instruction& instruction = (*program)[skid.out >> part_shift_];
        const bool last = (skid.out & (parts - 1)) == parts - 1;
        const int queue = OPCODE_QUEUE[instruction.opcode];
        bool taken = false;
        if (queue < 0 && instruction.opcode != OP_END) taken = sequencer.step(instruction, last);
        else if (!sequencer.settles(last)) return false;
        else if (queue < 0) running = false;
        else if (queues[queue].full) blocked_by = queue;
        else {
            taken = true;
            if (last) arrived = pass(instruction);
        }
        if (taken && last && !sequencer.jumps()) sequencer.pass();
        return taken;
    }

    int32_t pass(const Instruction& instruction) {
        passed->push_back(instruction);
        for (unsigned k = 0; k < 2; k++) {
            const int field = KINDS[instruction.opcode].registers[k];
            if (field >= 0) passed->back().values[k] = sequencer.registers[instruction.fields[field]];
        }
        return int32_t(passed->size()) - 1;
    }

    // Restarts fetch in the cycle after a jump.
    void land() {
        const uint32_t to = sequencer.target;
        sequencer.land();
        skid.valid = skid.full = block_valid = asked = false;
        level = left = pending = 0;
        stale = coming;
        second = splits > 1 && to / word_bytes_ % 2;
        address = to / bus * bus;
        part = 0;
        if (sequencer.reads) return;
        const uint32_t index = (to - entry) / word_bytes_;
        part = index << part_shift_;
        if (index >= program->size()) lost = true;
    }

    void buffer(bool beat, bool popped) {
        if (!block) {
            level += beat - popped;
            return;
        }
        const bool moves = level != 0 && (!block_valid || popped);
        if (moves) block_valid = true;
        else if (popped) block_valid = false;
        level += beat - moves;
    }
};

}  // namespace weft
