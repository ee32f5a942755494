// The load unit (hdl/load/load.py): page tables, prefetching requests, beats, unpacker, scratchpad port.
#pragma once

#include "unpack.h"
#include "common.h"
#include "memory.h"
#include "queues.h"

namespace weft {

// hdl/load/load.py: a register for one LOAD. Its page table entry is requested while the LOAD waits for the register.
struct PageReader {
    bool asked = false, held = false, lacks = false, ask = false;
    int32_t located = -1;
    uint32_t entry = 0;  // added to the offset of `located`
    Burst request;
    Fifo<uint32_t, 4> coming, entries;

    bool accepts(const Load* op, bool located_ready) const {
        return op && (asked || !op->paged) && (!held || (!lacks && located_ready));
    }

    // Returns true if nothing changes until an instruction or a page table entry arrives.
    bool waits(bool located_ready) const {
        return !ask && !entries.readable() && !(held && !lacks && located_ready);
    }

    void step(const Load* op, int32_t index, bool accept, bool located_ready, bool request_taken, bool beat,
              uint32_t address, uint32_t value, unsigned bus) {
        const bool issue = op && op->paged && !asked && !ask;
        const bool add = lacks && entries.readable();
        if (accept) held = true, lacks = op->paged, located = index, entry = 0;
        else if (add) lacks = false, entry = entries.head();
        else if (located_ready && !lacks) held = false;
        if (add) entries.pop();
        if (beat) entries.push(coming.head()), coming.pop();
        if (issue) {
            asked = ask = true;
            coming.push(value);
            request = {address / bus * bus, 1, PAGES};
        } else {
            if (accept) asked = false;
            if (request_taken) ask = false;
        }
    }
};

struct LoadUnit {
    const Parameters* p = nullptr;
    const std::vector<Instruction>* program = nullptr;
    PageReader pages;
    Splitter splitter;
    Fifo<Unpack, 4> queue;
    Unpacker unpacker;
    SkidBuffer<char> beats;
    Transposer transposer;
    PlainPort plain;
    // Runs that are not requested yet.
    bool run = false;
    uint32_t address = 0, pitch = 0, jump = 0;
    int64_t bytes = 0, rows = 0, line = 0, line_reload = 0, passes = 0, passes_reload = 0;
    int64_t ahead = 0;
    bool allowed = true;
    uint64_t stall_memory = 0, stall_port = 0;
    uint16_t signal = 0;  // signals of this cycle, with the instruction in `done`
    int32_t done = -1;

    void configure(const Parameters& parameters) {
        p = &parameters;
        splitter.align = log2_of(uint64_t(p->bus_bytes)), splitter.block = uint32_t(p->load_block);
        unpacker.configure(p->unpack_vectors);
        unpacker.align = splitter.align, unpacker.bus = p->bus_bytes, unpacker.n = transposer.n = p->n;
        queue.depth = unsigned(p->load_descriptors);
        shift_ = log2_of(uint64_t(p->scratchpad_depth)), mask_ = uint32_t(p->scratchpad_size - 1);
    }

    bool busy() const {
        return (p->softmax && pages.held) || run || queue.readable() || unpacker.busy() ||
               (p->softmax ? transposer.busy() : plain.signal != 0);
    }
    // Returns true if the unit is idle, with no signal or request left.
    bool quiet() const {
        return !pages.held && !run && !queue.readable() && !unpacker.busy() && !beats.valid &&
               splitter.idle() && transposer.quiet() && !plain.signal && plain.done < 0 && !pages.ask && allowed;
    }
    bool asks() const { return splitter.bursts.valid && allowed; }
    Burst request() const { return {splitter.bursts.out.address, splitter.bursts.out.beats, LOADS}; }
    bool takes_beat() const { return beats.ready(); }

    // Simulates a cycle, and returns true if the offered instruction `index` (or -1) is accepted. `beat`, `page_beat`:
    // beats on the bus; `load_taken`, `page_taken`: requests taken by the bus; `vec_write`: see `write`.
    bool step(int32_t index, bool beat, bool page_beat, bool load_taken, bool page_taken, unsigned vec_write,
              const uint8_t* memory, uint64_t memory_bytes) {
        const Load* op = index < 0 ? nullptr : &fields_of<Load>((*program)[size_t(index)]);
        signal = p->softmax ? transposer.signal : plain.signal;
        done = p->softmax ? transposer.done : plain.done;
        const bool ready = !run && queue.writable();
        const bool beat_taken = beat && beats.ready();
        const bool unpack_taken = unpack(beat, vec_write);
        const bool request_taken = load_taken && allowed;
        const int64_t asked = request_taken && asks() ? request().beats : 0, more = asked - int64_t(beat_taken);
        const bool located = p->softmax ? pages.held && !pages.lacks : op != nullptr, begins = ready && located;
        const int32_t begun = p->softmax ? pages.located : index;
        const uint32_t entry = p->softmax ? pages.entry : 0;
        const bool run_taken = run && splitter.waiting.ready();
        if (run_taken || splitter.moves(request_taken))
            splitter.step(run, run ? splitter.in_words(address, uint64_t(bytes), -1) : Splitter::Run{}, request_taken);
        bool accepted = begins;
        if (p->softmax) accepted = locate(op, index, ready, page_taken, page_beat, memory, memory_bytes);
        if (unpack_taken) queue.pop();
        if (begins) begin(begun, entry);
        else if (run_taken) next_run();
        allowed = ahead < p->load_ahead;
        ahead += more;
        return accepted;
    }

private:
    unsigned shift_ = 0;
    uint32_t mask_ = 0;
    bool upper_ = false;  // the unpacker is at the upper half of a word
    int64_t words_ = 0;   // words left in a group of int4 values

    unsigned bank(int64_t address_) const { return (uint32_t(address_) & mask_) >> shift_; }

    // Moves data from beats to the scratchpad. Returns true if a descriptor is taken from the queue.
    bool unpack(bool beat, unsigned vec_write) {
        const bool vector_taken = write(vec_write);
        // hdl/load/transpose.py: a word of factors precedes a group of int4 values, and bypasses the unpacker.
        const bool ahead_of_group = unpacker.op.blocks && !words_, factors = beats.valid && ahead_of_group && unpacker.some;
        const bool taken =
            unpacker.step(queue.readable() ? &queue.head() : nullptr, beats.valid && !ahead_of_group, vector_taken);
        stall_memory += unpacker.stalls;
        // hdl/load/transpose.py: a word of int4 values is taken in two halves.
        const bool half = unpacker.pops && unpacker.op.int4, popped = factors || (unpacker.pops && (!half || upper_));
        upper_ ^= half;
        if (factors) words_ = GROUP;
        else if (half && words_) words_--;
        if (beat || beats.valid) beats.step(beat, 0, popped);
        return taken;
    }

    // Simulates `pages`. Returns true if `op` moves to its register.
    bool locate(const Load* op, int32_t index, bool ready, bool request_taken, bool beat, const uint8_t* memory,
                uint64_t memory_bytes) {
        if (!op && !beat && pages.waits(ready)) return false;
        const bool accepted = pages.accepts(op, ready);
        uint32_t at = 0, value = 0;
        if (op && op->paged) {
            at = (*program)[size_t(index)].values[1] + uint32_t(op->page) * 4;
            for (unsigned k = 0; k < 4 && at + uint64_t(4) <= memory_bytes; k++)
                value |= uint32_t(memory[at + k]) << 8 * k;
        }
        pages.step(op, index, accepted, ready, request_taken, beat, at, value, unsigned(p->bus_bytes));
        return accepted;
    }

    // Writes vectors to the scratchpad, while the vector unit writes to bank `vec_write` - 1. Returns true if a vector
    // is taken from the unpacker.
    bool write(unsigned vec_write) {
        if (!p->softmax) {
            const bool offered = unpacker.valid;
            const bool granted = offered && 1 + bank(unpacker.output.address) != vec_write;
            stall_port += offered && !granted;
            plain.step(granted, unpacker.output);
            return granted;
        }
        if (!unpacker.valid && transposer.quiet()) return false;
        const bool granted = transposer.port && 1 + bank(transposer.at_port.address) != vec_write;
        stall_port += transposer.port && !granted;
        return transposer.step(unpacker.valid, unpacker.output, granted);
    }

    void next_run() {
        if (passes) {
            passes--;
            return;
        }
        passes = passes_reload;
        address += line ? pitch : jump;
        line = line ? line - 1 : line_reload;
        run = rows != 0;
        rows--;
    }

    void begin(int32_t index, uint32_t entry) {
        const Instruction& instruction = (*program)[size_t(index)];
        const Load& op = fields_of<Load>(instruction);
        const uint32_t first = instruction.values[0] + uint32_t(op.offset) + entry;
        const int64_t n = p->n, vectors_ = (op.length - 1) / n + 1, rest = (vectors_ - 1) * n;
        const bool overlap = op.pitch < op.length && rest && op.pixels != 1;
        run = true;
        bytes = taken(op.run, op.blocks), address = first, pitch = uint32_t(op.row_pitch), rows = op.rows - 1;
        jump = pitch + uint32_t(op.skip), line = line_reload = op.line - 1;
        passes = passes_reload = overlap ? vectors_ - 1 : 0;
        Unpack unpack;
        unpack.index = index;
        unpack.signal = uint16_t(op.signal);
        unpack.split = overlap, unpack.transpose = op.transpose;
        unpack.align = first, unpack.align_row = op.row_pitch;
        unpack.before = op.before, unpack.run_last = op.run - 1, unpack.int4 = op.int4;
        unpack.blocks = op.blocks;
        if (op.int4) unpack.run_last = 2 * ((op.run - 1) / p->bus_bytes + 1) * p->bus_bytes - 1;
        unpack.split_last = overlap ? rest : 0;
        unpack.step_inner = overlap ? op.pitch : n, unpack.step_outer = (op.pitch - rest) & 0xFFFF;
        unpack.align &= p->bus_bytes - 1, unpack.align_row &= p->bus_bytes - 1;
        unpack.align_line = (op.row_pitch + op.skip) & (p->bus_bytes - 1), unpack.line_last = op.line - 1;
        unpack.rows = op.rows;
        unpack.outer = overlap ? vectors_ : op.pixels, unpack.inner = overlap ? op.pixels : vectors_;
        unpack.dst = op.dst, unpack.dst_rows = op.dst_row;
        unpack.dst_outer = overlap ? op.dst_vector : op.dst_pixel;
        unpack.dst_inner = overlap ? op.dst_pixel : op.dst_vector;
        queue.push(unpack);
    }
};

}  // namespace weft
