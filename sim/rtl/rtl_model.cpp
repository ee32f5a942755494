// C interface to the Verilator model of the core with its memory, for weft.sim.rtl.device.
//
// Memory is a byte array on AXI4. It accepts up to OUTSTANDING INCR bursts, with a latency from an accepted address to
// its first beat (or from the last write beat to its response), and a token bucket of bytes that reads and writes
// share. Bursts are answered in order; optionally, reads with different IDs are reordered and interleaved. Every
// channel can stall at random. A violation of the protocol or an address outside memory ends the run with a message.

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "Vtop.h"
#include "verilated.h"
#if VM_TRACE_FST
#include "verilated_fst_c.h"
using Waves = VerilatedFstC;
#elif VM_TRACE
#include "verilated_vcd_c.h"
using Waves = VerilatedVcdC;
#endif
#if WEFT_OBSERVE
#include "rtl_observe.h"
#endif

double sc_time_stamp() { return 0; }

namespace {

constexpr unsigned BUS = WEFT_BUS_BYTES;
constexpr size_t OUTSTANDING = 16;
constexpr unsigned OKAY = 0, SLVERR = 2, INCR = 1;
constexpr int REGISTER_TIMEOUT = 10000;
constexpr unsigned HALF = 5;  // half a clock cycle in units of time

struct Burst {
    uint64_t address;
    uint64_t ready;
    unsigned beats, id;
    unsigned response;  // of a write: the response to its beats so far
};

// Accesses to these bytes get an error response (or, if `silent`, none) and have no effect.
struct Fault {
    uint64_t first, end;
    unsigned response;
    bool reads, writes, silent;
};

// Checks a channel that the core drives: a payload that is not accepted must stay unchanged in the next cycle.
template <size_t SIZE>
struct Offer {
    bool standing = false;
    uint8_t payload[SIZE];
    bool check(bool valid, bool ready, const uint8_t* now) {
        const bool fine = !standing || (valid && !std::memcmp(payload, now, SIZE));
        standing = valid && !ready;
        if (standing) std::memcpy(payload, now, SIZE);
        return fine;
    }
};

struct Model {
    VerilatedContext context;
    std::unique_ptr<Vtop> top;
#if VM_TRACE
    std::unique_ptr<Waves> trace;
    uint64_t trace_from = 0, trace_to = ~uint64_t(0);  // first and last time to record
    uint64_t window_from = 0, window_time = 0;  // start and length of the window after the next write of a register
    bool armed = false;  // the window waits for that write
#endif
#if WEFT_OBSERVE
    Observer observer;
#endif
    std::vector<uint8_t> memory;
    uint32_t origin = 0;  // bus address of memory
    uint64_t cycles = 0, latency = 1, random = 1;
    uint64_t begun = 0;  // cycle in which the last write of a register took effect
    uint32_t stall = 0;  // of 2**32
    double rate = 0, tokens = 0;  // bytes a cycle (0: no limit), bytes available
    std::deque<Burst> reads, writes, responses;
    bool reordered = false;  // reads with different IDs may overtake each other
    std::vector<Fault> faults;
    size_t served = 0;  // index into `reads` of the burst whose beat is on the bus
    bool beat_taken = false, response_taken = false;
    Offer<5> ar, aw;
    Offer<BUS + (BUS + 7) / 8 + 1> w;
    std::vector<uint64_t> marks, marked;  // totals of written bytes to record the cycle of, and the recorded cycles
    uint64_t written = 0, started = 0;
    std::string error;
    bool exhausted = false;

    uint32_t draw() {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        return static_cast<uint32_t>(random >> 32);
    }

    bool stalls() { return stall && draw() < stall; }

    // Returns the burst of the next beat: the first burst, or the first burst of a random ID if reordered.
    size_t choose() {
        if (!reordered) return 0;
        const unsigned id = reads[draw() % reads.size()].id;
        size_t first = 0;
        while (reads[first].id != id) first++;
        return first;
    }

    void fail(const char* format, ...) __attribute__((format(printf, 2, 3))) {
        if (!error.empty()) return;
        char text[200];
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        error = text;
    }

    // Returns the fault of a bus word, or null.
    const Fault* fault(uint64_t address, bool write) const {
        for (const Fault& fault : faults)
            if ((write ? fault.writes : fault.reads) && address < fault.end && address + BUS > fault.first) return &fault;
        return nullptr;
    }

    bool mute(uint64_t address, bool write) const {
        const Fault* const word_fault = fault(address, write);
        return word_fault && word_fault->silent;
    }

    bool funded() const { return rate == 0 || tokens >= BUS; }

    // Sets the core's inputs for a cycle. They depend only on earlier cycles, and change only here.
    void drive() {
        Vtop& t = *top;
        if (beat_taken) t.m_axi_rvalid = 0;
        if (response_taken) t.m_axi_bvalid = 0;
        beat_taken = response_taken = false;
        if (rate != 0 && tokens < BUS + rate) tokens += rate;
        t.m_axi_arready = reads.size() < OUTSTANDING && !stalls();
        t.m_axi_awready = writes.size() < OUTSTANDING && !stalls();
        t.m_axi_wready = !writes.empty() && funded() && !stalls() && !mute(writes.front().address, true);
        if (!t.m_axi_rvalid && !reads.empty()) served = choose();
        if (!t.m_axi_rvalid && !reads.empty() && reads[served].ready <= cycles && funded() && !stalls() &&
            !mute(reads[served].address, false)) {
            tokens -= BUS;
            const Burst& burst = reads[served];
            const Fault* const broken = fault(burst.address, false);
            const bool inside = burst.address + BUS <= memory.size() && !broken;
            if (inside) std::memcpy(&t.m_axi_rdata, &memory[burst.address], BUS);
            else std::memset(&t.m_axi_rdata, 0, BUS);
            t.m_axi_rresp = inside ? OKAY : broken ? broken->response : SLVERR;
            t.m_axi_rlast = burst.beats == 1;
            t.m_axi_rid = burst.id;
            t.m_axi_rvalid = 1;
        }
        if (!t.m_axi_bvalid && !responses.empty() && responses.front().ready <= cycles && !stalls()) {
            t.m_axi_bresp = responses.front().response;
            t.m_axi_bid = responses.front().id;
            t.m_axi_bvalid = 1;
        }
    }

    void accept(std::deque<Burst>& queue, const char* kind, uint32_t address, unsigned length, unsigned size,
                unsigned burst, unsigned id) {
        const uint32_t first = address - origin;
        const uint64_t end = uint64_t(first) + uint64_t(length + 1) * BUS;
        if (burst != INCR || (1u << size) != BUS || address % BUS)
            fail("the core broke AXI: a %s burst of kind %u, size %u at %#x", kind, burst, size, address);
        if (first >> 12 != (end - 1) >> 12) fail("the core broke AXI: the %s burst at %#x crosses 4 KiB", kind, address);
        if (end > memory.size()) fail("a %s at %#x is outside memory", kind, address);
        queue.push_back({first, cycles + latency, length + 1, id, OKAY});
    }

    void write_beat() {
        Vtop& t = *top;
        Burst& burst = writes.front();
        tokens -= BUS;
        uint8_t data[BUS], strobe[(BUS + 7) / 8];
        std::memcpy(data, &t.m_axi_wdata, BUS);
        std::memcpy(strobe, &t.m_axi_wstrb, sizeof strobe);
        const Fault* const broken = fault(burst.address, true);
        if (burst.address + BUS <= memory.size() && !broken) {
            for (unsigned i = 0; i < BUS; i++)
                if (strobe[i / 8] >> i % 8 & 1) memory[burst.address + i] = data[i], written++;
            while (marked.size() < marks.size() && written >= marks[marked.size()]) marked.push_back(cycles - started);
        } else burst.response = broken ? broken->response : SLVERR;
        burst.address += BUS;
        burst.beats--;
        if ((burst.beats == 0) != t.m_axi_wlast) fail("the core broke AXI: wlast does not end the burst");
        if (burst.beats == 0) {
            burst.ready = cycles + latency;
            responses.push_back(burst);
            writes.pop_front();
        }
    }

    // Evaluates the handshakes of a cycle, after all combinational outputs have settled.
    void sample() {
        Vtop& t = *top;
        const bool new_read = t.m_axi_arvalid && t.m_axi_arready, new_write = t.m_axi_awvalid && t.m_axi_awready;
        check_offers();
        if (t.m_axi_rvalid && t.m_axi_rready) {
            Burst& burst = reads[served];
            beat_taken = true;
            burst.address += BUS;
            if (--burst.beats == 0) reads.erase(reads.begin() + served);
        }
        if (t.m_axi_bvalid && t.m_axi_bready) {
            response_taken = true;
            responses.pop_front();
        }
        if (t.m_axi_wvalid && t.m_axi_wready) write_beat();
        if (new_read)
            accept(reads, "read", t.m_axi_araddr, t.m_axi_arlen, t.m_axi_arsize, t.m_axi_arburst, t.m_axi_arid);
        if (new_write)
            accept(writes, "write", t.m_axi_awaddr, t.m_axi_awlen, t.m_axi_awsize, t.m_axi_awburst, t.m_axi_awid);
    }

    void check_offers() {
        Vtop& t = *top;
        uint8_t address[5], beat[BUS + (BUS + 7) / 8 + 1];
        std::memcpy(address, &t.m_axi_araddr, 4);
        address[4] = t.m_axi_arlen;
        bool fine = ar.check(t.m_axi_arvalid, t.m_axi_arready, address);
        std::memcpy(address, &t.m_axi_awaddr, 4);
        address[4] = t.m_axi_awlen;
        fine &= aw.check(t.m_axi_awvalid, t.m_axi_awready, address);
        if (t.m_axi_wvalid || w.standing) {
            std::memcpy(beat, &t.m_axi_wdata, BUS);
            std::memcpy(beat + BUS, &t.m_axi_wstrb, (BUS + 7) / 8);
            beat[sizeof beat - 1] = t.m_axi_wlast;
            fine &= w.check(t.m_axi_wvalid, t.m_axi_wready, beat);
        }
        if (!fine) fail("the core broke AXI: an offer changed before it was accepted");
    }

    void edge(int level) {
        top->clk = level;
        top->eval();
#if WEFT_OBSERVE
        if (!level) observer.sample(*top);
#endif
        context.timeInc(HALF);
#if VM_TRACE
        if (trace) show(context.time());
#endif
    }

#if VM_TRACE
    void show(uint64_t time) {
        if (armed && top->s_axi_bvalid) {
            armed = false;
            trace_from = time + window_from;
            trace_to = trace_from + window_time;
        }
        if (time >= trace_from && time <= trace_to) trace->dump(time);
    }
#endif

    void step() {
        drive();
        edge(0);
        if (!top->rst) sample();
        edge(1);
        cycles++;
    }

    void reset() {
        reads.clear(), writes.clear(), responses.clear();
        ar.standing = aw.standing = w.standing = false;
        error.clear();
        beat_taken = response_taken = false;
        top->m_axi_rvalid = top->m_axi_bvalid = 0;
        top->s_axi_awvalid = top->s_axi_wvalid = top->s_axi_bready = top->s_axi_arvalid = top->s_axi_rready = 0;
        top->rst = 1;
        for (int i = 0; i < 4; i++) step();
        top->rst = 0;
    }

    bool write_register(uint32_t address, uint32_t value) {
        Vtop& t = *top;
        bool address_sent = false, data_sent = false, answered = false;
        t.s_axi_awaddr = address;
        t.s_axi_wdata = value;
        t.s_axi_wstrb = 15;
        for (int i = 0; i < REGISTER_TIMEOUT && !answered; i++) {
            t.s_axi_awvalid = !address_sent && (t.s_axi_awvalid || !stalls());
            t.s_axi_wvalid = !data_sent && (t.s_axi_wvalid || !stalls());
            t.s_axi_bready = !stalls();
            drive();
            edge(0);
            sample();
            address_sent |= t.s_axi_awvalid && t.s_axi_awready;
            data_sent |= t.s_axi_wvalid && t.s_axi_wready;
            if (!t.s_axi_bvalid) begun = cycles + 1;
            answered = t.s_axi_bvalid && t.s_axi_bready;
            edge(1);
            cycles++;
        }
        t.s_axi_awvalid = t.s_axi_wvalid = t.s_axi_bready = 0;
        return answered;
    }

    bool read_register(uint32_t address, uint32_t* value) {
        Vtop& t = *top;
        bool sent = false, answered = false;
        t.s_axi_araddr = address;
        for (int i = 0; i < REGISTER_TIMEOUT && !answered; i++) {
            t.s_axi_arvalid = !sent && (t.s_axi_arvalid || !stalls());
            t.s_axi_rready = !stalls();
            drive();
            edge(0);
            sample();
            sent |= t.s_axi_arvalid && t.s_axi_arready;
            answered = t.s_axi_rvalid && t.s_axi_rready;
            if (answered) *value = t.s_axi_rdata;
            edge(1);
            cycles++;
        }
        t.s_axi_arvalid = t.s_axi_rready = 0;
        return answered;
    }
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Exceptions must not reach Python. The only ones thrown here mean that memory ran out.
template <class Action>
static int guarded(Model* model, Action action) {
    try {
        return action();
    } catch (const std::exception&) {
        model->exhausted = true;
        return 0;
    }
}

static std::unique_ptr<Model> open(uint64_t memory_bytes, uint64_t latency, double bytes_per_cycle, double stall,
                                   uint64_t seed, const char* trace, uint32_t levels, uint32_t later) {
    auto model = std::make_unique<Model>();
    model->memory.resize(memory_bytes);
    model->latency = latency;
    model->rate = bytes_per_cycle;
    // Like the cycle model, start after a long rest: the token bucket is full.
    while (model->rate > 0 && model->tokens < BUS + model->rate) model->tokens += model->rate;
    model->stall = stall <= 0 ? 0 : static_cast<uint32_t>(stall * 4294967295.0);
    model->random = (seed + 1) * 0x9E3779B97F4A7C15ull | 1;
#if VM_TRACE
    model->context.traceEverOn(true);
#endif
    model->top = std::make_unique<Vtop>(&model->context);
#if VM_TRACE
    if (trace) {
        // Open the file first: on failure Verilator's writers end the program, or do not report it.
        std::FILE* const file = std::fopen(trace, "wb");
        if (!file) return nullptr;
        std::fclose(file);
        model->trace = std::make_unique<Waves>();
        if (later) model->trace_to = 0;
        model->top->trace(model->trace.get(), 99);
        if (levels) model->trace->dumpvars(static_cast<int>(levels), "TOP");
        model->trace->open(trace);
        if (!model->trace->isOpen()) return nullptr;
    }
#endif
    model->reset();
    return model;
}

// `stall` is a probability, `trace` a path or null, `levels` the depth of traced modules (0: all). With `later`,
// nothing is written before `weft_window`. Returns null if the file cannot be opened, or if memory runs out
// (`exhausted`).
EXPORT Model* weft_open(uint64_t memory_bytes, uint64_t latency, double bytes_per_cycle, double stall, uint64_t seed,
                        const char* trace, uint32_t levels, uint32_t later, int* exhausted) {
    *exhausted = 0;
    try {
        return open(memory_bytes, latency, bytes_per_cycle, stall, seed, trace, levels, later).release();
    } catch (const std::exception&) {
        *exhausted = 1;
        return nullptr;
    }
}

EXPORT void weft_close(Model* model) {
    model->top->final();
#if VM_TRACE
    if (model->trace) model->trace->close();
#endif
    delete model;
}

EXPORT void weft_reset(Model* model) {
    guarded(model, [=] {
        model->reset();
        return 1;
    });
}
EXPORT void weft_idle(Model* model, uint64_t cycles) {
    guarded(model, [=] {
        for (uint64_t i = 0; i < cycles; i++) model->step();
        return 1;
    });
}
// Reorders reads with different IDs from now on.
EXPORT void weft_reorder(Model* model) { model->reordered = true; }
// Makes accesses to bytes `first` to `end` - 1 fail with `response` from now on; 0: they get no response.
EXPORT void weft_fault(Model* model, uint64_t first, uint64_t end, uint32_t response, uint32_t reads, uint32_t writes) {
    guarded(model, [=] {
        model->faults.push_back({first, end, response, reads != 0, writes != 0, response == OKAY});
        return 1;
    });
}
EXPORT void weft_no_faults(Model* model) { model->faults.clear(); }
EXPORT uint8_t* weft_memory(Model* model) { return model->memory.data(); }
// Records from now on the cycles in which each of `count` ascending totals of written bytes is reached.
EXPORT void weft_mark(Model* model, const uint64_t* totals, uint64_t count) {
    guarded(model, [=] {
        model->marks.assign(totals, totals + count);
        model->marked.clear();
        model->written = 0;
        model->started = model->cycles;
        return 1;
    });
}
EXPORT uint64_t weft_marks(Model* model, uint64_t* cycles) {
    std::memcpy(cycles, model->marked.data(), model->marked.size() * sizeof(uint64_t));
    return model->marked.size();
}
EXPORT uint64_t weft_cycles(Model* model) { return model->cycles; }
EXPORT uint64_t weft_begun(Model* model) { return model->begun; }
// Restricts waveforms to `cycles` cycles, which begin `from` cycles after the next write of a register takes effect.
EXPORT void weft_window(Model* model, uint64_t from, uint64_t cycles) {
#if VM_TRACE
    model->window_from = 2 * HALF * from;
    model->window_time = 2 * HALF * cycles;
    model->trace_to = 0;
    model->armed = true;
#endif
}
// Returns the number of changes of observed signals: pairs of cycle and word, see rtl_observe.h.
EXPORT uint64_t weft_observed(Model* model, const uint64_t** changes) {
#if WEFT_OBSERVE
    *changes = &model->observer.changes.data()->cycle;
    return model->observer.changes.size();
#else
    return 0;
#endif
}
EXPORT const char* weft_error(Model* model) { return model->error.c_str(); }
// Returns 1 if memory has run out; then the model can only be closed.
EXPORT int weft_exhausted(Model* model) { return model->exhausted; }
EXPORT int weft_write_register(Model* model, uint32_t address, uint32_t value) {
    return guarded(model, [=] { return model->write_register(address, value); });
}
EXPORT int weft_read_register(Model* model, uint32_t address, uint32_t* value) {
    return guarded(model, [=] { return model->read_register(address, value); });
}

// Runs until the interrupt, an error message, or for `cycles` cycles. Returns 1 on an interrupt.
EXPORT int weft_run(Model* model, uint64_t cycles) {
    return guarded(model, [=]() -> int {
        for (uint64_t i = 0; i < cycles && model->error.empty(); i++) {
            if (model->top->irq) return 1;
            model->step();
        }
        return model->top->irq;
    });
}
