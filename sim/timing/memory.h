// Memory on the AXI4 port, cycle by cycle: that of sim/rtl/rtl_model.cpp or a board's SDRAM, with the registers of
// hdl/bus/axi.py in front of it.
#pragma once

#include "bridge.h"
#include "common.h"

namespace weft {

constexpr unsigned OUTSTANDING = 16;  // bursts in flight in each direction, as in rtl_model.cpp
constexpr Cycle SAMPLE = 64;          // cycles per count of beats in a trace, as in device.py

struct WriteBeat {
    bool last = false;
    uint16_t bytes = 0;
};

struct Memory {
    struct Pending {
        Cycle ready = 0;
        unsigned beats = 0;
        uint8_t id = 0;
    };

    Cycle latency = 30;
    double rate = 0, tokens = 0;  // bandwidth shared by reads and writes (0: no limit), bytes available
    double bus = 16;
    Fifo<Pending, 64> reads, writes, responses;
    bool read_valid = false, response_valid = false, write_ready = false, read_ready_for_address = false,
         write_ready_for_address = false;
    uint8_t read_id = 0;
    bool on_board = false;
    SdramBoard board;
    SkidBuffer<Burst> ar, aw;
    SkidBuffer<WriteBeat> w;
    uint64_t read_beats = 0, write_beats = 0, written = 0;
    std::vector<uint64_t> marks;
    std::vector<Cycle> marked;
    bool sampled = false;
    std::vector<uint32_t> samples;  // read and write beats of every SAMPLE cycles, alternating

    bool idle() const {
        if (on_board) return !ar.valid && !aw.valid && !w.valid && board.idle();
        return !reads.readable() && !writes.readable() && !responses.readable() && !ar.valid && !aw.valid && !w.valid &&
               !read_valid && !response_valid && (rate == 0 || tokens >= bus + rate);
    }

    bool funded() const { return rate == 0 || tokens >= bus; }

    // Sets the outputs of memory for this cycle.
    void drive(Cycle now) {
        if (on_board) {
            board.drive(now);
            read_ready_for_address = board.read_ready_for_address, read_valid = board.read_valid;
            write_ready_for_address = board.write_ready_for_address, write_ready = board.write_ready;
            read_id = board.read_id, response_valid = board.response_valid;
            return;
        }
        if (rate != 0 && tokens < bus + rate) tokens += rate;
        read_ready_for_address = reads.level < OUTSTANDING;
        write_ready_for_address = writes.level < OUTSTANDING;
        write_ready = writes.readable() && funded();
        if (!read_valid && reads.readable() && reads.head().ready <= now && funded()) {
            tokens -= bus;
            read_id = reads.head().id;
            read_valid = true;
        }
        if (!response_valid && responses.readable() && responses.head().ready <= now) response_valid = true;
    }

    // Evaluates the handshakes of this cycle, then the registers of the channels. Responses are always accepted.
    void step(Cycle now, bool read_ready, bool ask, const Burst& read, bool ask_write, const Burst& write, bool send,
              const WriteBeat& beat) {
        const bool new_read = ar.valid && read_ready_for_address, new_write = aw.valid && write_ready_for_address;
        const bool sent = w.valid && write_ready, left = read_valid && read_ready;
        if (left) {
            read_beats++;
            if (sampled) sample(now, 0);
        }
        if (sent) count_beat(now);
        if (on_board) {
            board.step(now, new_read ? &ar.out : nullptr, new_write ? &aw.out : nullptr, sent, left);
            read_valid = response_valid = false;
        } else step_plain(now, new_read, new_write, sent, left);
        if (ask || ar.valid) ar.step(ask, read, new_read);
        if (ask_write || aw.valid) aw.step(ask_write, write, new_write);
        if (send || w.valid) w.step(send, beat, sent);
    }

private:
    void sample(Cycle now, size_t way) {
        const size_t at = size_t(now / SAMPLE) * 2;
        if (samples.size() < at + 2) samples.resize(at + 2);
        samples[at + way]++;
    }
    void step_plain(Cycle now, bool new_read, bool new_write, bool sent, bool left) {
        if (left) {
            read_valid = false;
            if (--reads.head().beats == 0) reads.pop();
        }
        if (response_valid) response_valid = false, responses.pop();
        if (sent) take_beat(now);
        if (new_read) reads.push({now + latency, ar.out.beats, ar.out.id});
        if (new_write) writes.push({now + latency, aw.out.beats, 0});
    }
    void count_beat(Cycle now) {
        write_beats++;
        if (sampled) sample(now, 1);
        written += w.out.bytes;
        while (marked.size() < marks.size() && written >= marks[marked.size()]) marked.push_back(now);
    }
    void take_beat(Cycle now) {
        tokens -= bus;
        if (--writes.head().beats == 0) {
            responses.push({now + latency, 0, 0});
            writes.pop();
        }
    }
};

// hdl/bus/axi.py: splits runs of bytes into bursts at multiples of `block` bus words, at most one a cycle.
struct Splitter {
    struct Run {
        uint32_t word = 0, rest = 0;
        int32_t tag = -1;  // instruction whose last run this is, or -1
    };
    struct Cut {
        uint32_t address = 0;
        uint16_t beats = 0;
        bool last = false;
        int32_t tag = -1;
    };

    unsigned align = 4;
    uint32_t block = 64;
    SkidBuffer<Run> waiting;
    bool active = false;
    Run run;
    SkidBuffer<Cut> bursts;

    bool idle() const { return !waiting.valid && !active && !bursts.valid; }
    // Returns true if the state changes without a new run.
    bool moves(bool taken) const { return taken || (active ? bursts.ready() : waiting.valid); }
    // Converts a run of bytes to bus words.
    Run in_words(uint32_t start, uint64_t bytes, int32_t mark) const {
        return {start >> align, uint32_t((bytes + (start & ((1u << align) - 1)) - 1) >> align), mark};
    }
    void step(bool offered, const Run& coming, bool taken) {
        const uint32_t room = ~run.word & (block - 1);
        const bool move = bursts.ready(), last = run.rest <= room, next = !active || (move && last);
        const Cut cut{run.word << align, uint16_t((last ? run.rest & (block - 1) : room) + 1), last, run.tag};
        bursts.step(active, cut, taken);
        if (next) {
            active = waiting.valid;
            if (active) run = waiting.out;
        } else if (move) {
            run.rest = run.rest - room - 1;
            run.word = (run.word / block + 1) * block;
        }
        waiting.step(offered && waiting.ready(), coming, next);
    }
};

}  // namespace weft
