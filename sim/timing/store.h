// The store unit (hdl/store.py): requests, prefetching reads of the scratchpad, packer, and confirmations.
#pragma once

#include "common.h"
#include "memory.h"

namespace weft {

// A vector on its way to memory.
struct Packed {
    int32_t pointer = 0, count = 0;
    uint8_t bank = 0;
    bool last = false;
};

// Second stage of the packer of hdl/store.py; the first stage is the skid buffer.
struct Packer {
    SkidBuffer<Packed> stage;
    bool flush = false;
    int32_t kept = 0;  // bytes of the partial beat
    int32_t bus = 16, block = 256;
    unsigned align = 4;

    struct Now {
        bool valid = false, full = false, spill = false;
        WriteBeat beat;
        int32_t here = 0;
    };

    Now now() const {
        Now now;
        if (flush) {
            now.valid = now.beat.last = true;
            now.beat.bytes = uint16_t(kept);
            return now;
        }
        if (!stage.valid) return now;
        const Packed& v = stage.out;
        const int32_t end = (v.pointer & (bus - 1)) + v.count;
        now.full = end >= bus, now.spill = end > bus;
        now.here = now.spill ? v.count - (end - bus) : v.count;
        now.valid = now.full || v.last;
        const bool block_end = ((v.pointer >> align) & (block - 1)) == block - 1;
        now.beat.last = block_end || (v.last && !now.spill);
        now.beat.bytes = uint16_t(kept + now.here);
        return now;
    }

    void step(const Now& now, bool offered, const Packed& vector, bool beat_ready) {
        const bool taken = stage.valid && !flush && (beat_ready || !now.valid);
        if (taken) {
            const Packed& v = stage.out;
            kept = now.full ? v.count - now.here : v.last ? 0 : kept + now.here;
            flush = v.last && now.spill;
        } else if (flush && beat_ready) flush = false, kept = 0;
        stage.step(offered && stage.ready(), vector, taken);
    }
};

struct StoreUnit {
    struct Read {
        bool merged = false;
        int64_t tail = 0, rows = 1, pixels = 1, vectors = 1, src = 0, src_rows = 0, src_pixels = 0, src_vectors = 0;
        int64_t pointer = 0, pointer_rows = 0, pointer_pixels = 0;
    };
    struct Confirmation {
        uint64_t burst = 0;
        int32_t index = -1;
        uint16_t signal = 0;
    };

    const Parameters* p = nullptr;
    const std::vector<Instruction>* program = nullptr;
    // Requests.
    Nest<2, 1> runs;
    int32_t index = -1;
    uint32_t factor = 0;
    uint64_t bytes = 0;
    Splitter splitter;
    Fifo<Read, 4> queue;
    // Reads: loop nest, skid buffer, credits, latency, queue.
    Nest<3, 2> nest;
    bool go = false;  // take a descriptor in this cycle
    Read op;
    SkidBuffer<Packed> ahead;
    int64_t credits = 0;
    Packed flight[8];
    unsigned flying = 0;  // one bit per cycle of the read latency
    Fifo<Packed, 16> vectors;
    SkidBuffer<Packed> skid;
    Packer packer;
    // Bursts and confirmations.
    uint64_t asked = 0, confirmed = 0;
    int64_t bursts_ahead = 0;
    bool few = true, space = true;
    Fifo<Confirmation, 16> unconfirmed;
    uint16_t signal = 0, following_signal = 0;
    int32_t done = -1, following_done = -1;
    uint64_t stall_memory = 0, stall_port = 0;
    // Outputs of the current cycle.
    bool asks = false, sends = false;
    Burst request;
    WriteBeat beat;

    void configure(const Parameters& parameters) {
        p = &parameters;
        splitter.align = packer.align = log2_of(uint64_t(p->bus_bytes)), splitter.block = uint32_t(p->store_block);
        packer.bus = int32_t(p->bus_bytes), packer.block = int32_t(p->store_block);
        queue.depth = unsigned(p->store_descriptors), unconfirmed.depth = unsigned(p->store_unconfirmed);
        credits = p->store_reads;
        shift_ = log2_of(uint64_t(p->scratchpad_depth)), mask_ = uint32_t(p->scratchpad_size - 1);
    }

    bool busy() const { return runs.active || !splitter.idle() || unconfirmed.readable() || following_signal; }
    bool quiet() const {
        return !busy() && following_done < 0 && !reads() && few && space && !bursts_ahead;
    }

    // Returns true while vectors are read, or on their way to memory.
    bool reads() const {
        return nest.active || queue.readable() || ahead.valid || flying || vectors.readable() || skid.valid ||
               packer.stage.valid || packer.flush;
    }

    // Simulates a cycle. Returns true if the offered instruction is accepted. `ports`: other units' scratchpad reads.
    bool step(Cycle now, int32_t offered, const Competition& ports, bool address_ready, bool data_ready,
              bool response) {
        signal = following_signal, done = following_done;
        const bool ready = !runs.active && queue.writable(), accepted = offered >= 0 && ready;
        const bool wants = ahead.valid && credits != 0;
        const unsigned at = 1 + unsigned(ahead.out.bank);
        const bool granted = wants && at != ports.b && at != ports.a && at != ports.vec;
        const bool finishing = unconfirmed.readable();
        const Packer::Now packed = packer.now();
        const bool some = bursts_ahead != 0, beat_ready = data_ready && some;
        stall_port += wants && !granted;
        stall_memory += (packed.valid && !beat_ready) || (finishing && !queue.readable() && !wants);

        const Splitter::Cut& cut = splitter.bursts.out;
        const bool ends = cut.tag >= 0 && cut.last, allowed = few && (space || !ends);
        asks = splitter.bursts.valid && allowed, request = {cut.address, cut.beats, 0};
        sends = packed.valid && some, beat = packed.beat;
        confirm(asks && address_ready, sends && data_ready && beat.last, ends ? cut.tag : -1, response);
        const bool nest_ready = read(now, granted, packed, beat_ready);
        requests(accepted, offered, allowed && address_ready);
        if (nest_ready) queue.pop();
        return accepted;
    }

private:
    unsigned shift_ = 0;
    uint32_t mask_ = 0;

    // `ended`: instruction whose last burst is sent, or -1.
    void confirm(bool send, bool sent, int32_t ended, bool response) {
        const bool pops = unconfirmed.readable() && confirmed >= unconfirmed.head().burst;
        following_signal = pops ? unconfirmed.head().signal : 0;
        following_done = pops ? unconfirmed.head().index : -1;
        few = int64_t(asked - confirmed) < p->store_bursts - 1;
        space = unconfirmed.level < unconfirmed.depth - 1;
        if (pops) unconfirmed.pop();
        if (send && ended >= 0) {
            const auto mask = uint16_t(fields_of<Header>((*program)[size_t(ended)]).signal);
            unconfirmed.push({asked + 1, ended, mask});
        }
        asked += send, confirmed += response;
        bursts_ahead += int64_t(send) - int64_t(sent);
    }

    // Moves vectors from the loop nest to the packer. Returns true if the nest takes a descriptor from the queue.
    bool read(Cycle now, bool granted, const Packer::Now& packed, bool beat_ready) {
        if (!reads()) return false;
        const unsigned latency = unsigned(p->read_latency);
        const bool into_skid = vectors.readable() && skid.ready();
        const bool into_packer = skid.valid && packer.stage.ready();
        const Packed first = vectors.head(), second = skid.out;
        packer.step(packed, into_packer, second, beat_ready);
        skid.step(into_skid, first, into_packer);
        const bool arrives = flying >> (latency - 1) & 1;
        const Packed arrived = flight[(now - latency) % 8];
        vectors.step(arrives, arrived, into_skid);
        flying = (flying << 1 | unsigned(granted)) & ((1u << latency) - 1);
        if (granted) flight[now % 8] = ahead.out;
        const bool room = ahead.ready(), steps = nest.active && room;
        const bool free = !nest.active || (steps && nest.last_all());
        const bool taken = go;
        go = !go && free && queue.readable();
        ahead.step(steps, steps ? nest_vector() : Packed{}, granted);
        credits += int64_t(into_skid) - int64_t(granted);
        if (steps) nest.step();
        if (taken) start(queue.head());
        return taken;
    }

    Packed nest_vector() const {
        Packed vector;
        vector.bank = uint8_t((uint32_t(nest.at(0)) & mask_) >> shift_);
        vector.pointer = int32_t(nest.at(1) & (p->burst_page - 1));
        vector.count = int32_t(nest.last(2) ? op.tail : p->n);
        vector.last = nest.last(2) && (nest.last(1) || !op.merged);
        return vector;
    }

    void start(const Read& next) {
        op = next;
        nest.count[0] = op.rows, nest.count[1] = op.pixels, nest.count[2] = op.vectors;
        nest.set(0, op.src, {op.src_rows, op.src_pixels, op.src_vectors});
        nest.set(1, op.pointer, {op.pointer_rows, op.pointer_pixels, p->n});
        nest.start();
    }

    void requests(bool accepted, int32_t offered, bool request_taken) {
        const bool run = runs.active && factor == 0;
        const bool taken = run && splitter.waiting.ready();
        const int32_t tag = run && runs.last_all() ? index : -1;
        if (run || !splitter.idle()) 
            splitter.step(run, run ? splitter.in_words(uint32_t(runs.at(0)), bytes, tag) : Splitter::Run{}, request_taken);
        if (accepted) {
            begin(offered);
            return;
        }
        factor >>= 1;
        if (taken) runs.step();
    }

    void begin(int32_t offered) {
        const Instruction& instruction = (*program)[size_t(offered)];
        const Store& store = fields_of<Store>(instruction);
        const uint32_t first = instruction.values[0] + uint32_t(store.offset);
        const bool merged = store.pitch == store.length || store.pixels == 1;
        index = offered;
        factor = uint32_t(merged ? store.pixels : 1);
        bytes = uint32_t(merged ? store.pixels * store.length : store.length);
        runs.count[0] = store.rows, runs.count[1] = merged ? 1 : store.pixels;
        runs.set(0, first, {store.row_pitch, store.pitch});
        runs.start();
        Read read;
        read.merged = merged;
        read.tail = (store.length - 1) % p->n + 1, read.vectors = (store.length - 1) / p->n + 1;
        read.rows = store.rows, read.pixels = store.pixels, read.src = store.src;
        read.src_rows = store.src_row, read.src_pixels = store.src_pixel, read.src_vectors = store.src_vector;
        read.pointer = first, read.pointer_rows = store.row_pitch, read.pointer_pixels = store.pitch;
        queue.push(read);
    }
};

}  // namespace weft
