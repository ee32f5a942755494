// The cycle model of hdl/core.py: every unit's control, cycle by cycle, without data. Idle units are skipped, so a
// cycle costs a few nanoseconds. Called by library.py.

#include "common.h"
#include "descriptors.h"
#include "load.h"
#include "matrix.h"
#include "memory.h"
#include "queues.h"
#include "store.h"
#include "vector.h"
#include "words.h"

#include <exception>
#include <list>
#include <memory>

namespace weft {
namespace {

enum Outcome { DONE, HANGS, TIMEOUT, LOST, ENDLESS };

struct Machine {
    Parameters p{};
    std::list<Program> code;           // programs whose instructions may still be in use
    std::vector<Instruction> program;  // executed instructions in order of fetch; units refer to them by index
    uint64_t most = 0;                 // limit of executed instructions, for programs that do not end
    const uint8_t* dram = nullptr;
    uint64_t dram_bytes = 0;

    Schedule schedule;
    Semaphores semaphores;
    Memory memory;
    Fetch fetch;
    Walker walker;
    Dispatcher queues[UNITS];
    LoadUnit load;
    Matrix mm;
    VectorUnit vec;
    StoreUnit store;
    // False while a unit is idle.
    bool load_on = true, store_on = true, vec_on = true, memory_on = true;

    Cycle now = 0, moved = 0;
    uint64_t spent[1 << 2 * UNITS]{};  // cycles by mask of busy units (upper bits) and of waiting queues (lower bits)
    bool listed = false;               // runs a list of programs
    bool ended = false;                // the program of the list has ended in this cycle
    Cycle launched = 0;                // cycle in which the program of the list started
    uint64_t waited = 0;               // LOAD's stalls until that cycle
    bool traced = false;
    std::vector<Interval> intervals;
    std::vector<Interval> open[UNITS];
    size_t closed[UNITS]{};
    bool restless = true;  // a queue or semaphore changed in the previous cycle
    unsigned waits = 0;    // mask of queues that wait for semaphores

    void configure() {
        for (auto& queue : queues) queue.depth = unsigned(p.queue_depth);
        fetch.configure(p, dram, dram_bytes), load.configure(p), mm.configure(p), vec.configure(p), store.configure(p);
        fetch.passed = &program, load.program = store.program = &program;
        memory.bus = double(p.bus_bytes);
        if (memory.rate > 0)
            while (memory.tokens < memory.bus + memory.rate) memory.tokens += memory.rate;
    }

    // Reads the program at `entry`. Returns the index of its first invalid word, or -1.
    int64_t read(uint32_t entry) {
        code.push_back(read_program(dram, dram_bytes, entry, p.features));
        return code.back().faulty;
    }

    // Starts the program that was read last.
    void launch(uint32_t entry, const uint32_t* bases) {
        std::fill(std::begin(fetch.sequencer.registers), std::end(fetch.sequencer.registers), 0);
        std::copy(bases, bases + 8, fetch.sequencer.registers);
        fetch.program = &code.back().instructions;
        program.reserve(program.size() + code.back().instructions.size());
        fetch.start(entry);
    }

    // Runs the launched program, or the walker's list.
    Outcome run(Cycle limit) {
        while (now < limit) {
            if (mm.until <= now + 1 && !mm.quiet()) mm.run_ahead(now + 1, mm_offered(), schedule);
            if (leap(limit)) moved = now;
            now++;
            if (listed ? walker.state == Walker::REST : idle()) {
                for (unsigned unit = 0; unit < UNITS; unit++)
                    while (closed[unit] < open[unit].size()) finish(unit, true);
                return DONE;
            }
            if (!cycle()) {
                if (now - moved > HORIZON + memory.latency) return HANGS;
            } else moved = now;
            if (fetch.lost) return LOST;
            if (fetch.sequencer.executed > most) return ENDLESS;
        }
        return TIMEOUT;
    }

    void counters(uint64_t* out) const {
        out[COUNT_CYCLES] = now;
        out[COUNT_ARRAY_ACTIVE] = mm.active;
        out[COUNT_ARRAY_WINDOW] = mm.active ? mm.last_write - mm.first_row + 1 : 0;
        out[COUNT_READ_BEATS] = memory.read_beats, out[COUNT_WRITE_BEATS] = memory.write_beats;
        out[COUNT_LOAD_MEMORY] = load.stall_memory, out[COUNT_LOAD_PORT] = load.stall_port;
        out[COUNT_MM_WEIGHTS] = mm.stall_weights, out[COUNT_MM_PORT] = mm.stall_port;
        out[COUNT_VEC_PORT] = vec.stall_port;
        out[COUNT_STORE_MEMORY] = store.stall_memory, out[COUNT_STORE_PORT] = store.stall_port;
        const int bases_[UNITS] = {COUNT_LOAD_BUSY, COUNT_MM_BUSY, COUNT_VEC_BUSY, COUNT_STORE_BUSY};
        for (unsigned unit = 0; unit < UNITS; unit++) out[bases_[unit]] = out[bases_[unit] + 1] = 0;
        for (unsigned state = 0; state < 1 << 2 * UNITS; state++)
            for (unsigned unit = 0; unit < UNITS; unit++) {
                if (state >> (UNITS + unit) & 1) out[bases_[unit]] += spent[state];
                else if (state >> unit & 1) out[bases_[unit] + 1] += spent[state];
            }
    }

private:
    bool idle() const { return fetch.idle() && finished(); }
    bool finished() const {
        for (const auto& queue : queues)
            if (!queue.empty()) return false;
        return !load.busy() && !mm.running && !vec.busy(now) && !store.busy();
    }

    int32_t offered(unsigned unit) const { return queues[unit].granted ? queues[unit].word : -1; }
    const Mm* mm_offered() const {
        const int32_t word = offered(MM);
        return word < 0 ? nullptr : &fields_of<Mm>(program[size_t(word)]);
    }

    void look_at_queues() {
        waits = 0;
        for (unsigned unit = 0; unit < UNITS; unit++)
            waits |= unsigned(queues[unit].waiting(semaphores.available)) << unit;
    }

    // Skips cycles in which only the matrix unit works, because it is simulated ahead. Returns true if it skipped any.
    bool leap(Cycle limit) {
        if (restless || memory_on || vec_on || load_on || store_on || !mm.running || !fetch.sleeps(false, queues))
            return false;
        for (unsigned unit = 0; unit < UNITS; unit++)
            if (unit != MM && queues[unit].granted) return false;
        Cycle to = mm.quiet() && offered(MM) < 0 ? limit : mm.until;
        if (mm.ends.readable()) to = std::min(to, mm.ends.head());
        to = std::min(to, limit);
        if (to <= now + 1) return false;
        const Cycle cycles = to - 1 - now;
        spent[1u << (UNITS + MM) | waits] += cycles;
        now = to - 1;
        return true;
    }

    // Signals between units in one cycle.
    struct Wires {
        Slot slot;
        uint16_t given = 0;
        bool accepted[UNITS]{};
        Competition ports;
        bool load_beat, page_beat, fetch_beat, read_ready;  // beats of reads
        bool free, fetch_asks, page_asks, asks;             // requests of reads
        Burst read;
    };

    // Simulates a cycle from the registers at its start. Returns true if anything changed.
    bool cycle() {
        Wires wires;
        ended = listed && idle();
        wires.slot = schedule.take(now);
        if (restless) look_at_queues();
        const unsigned works = unsigned(load_on && load.busy()) << LOAD | unsigned(mm.running != 0) << MM |
                               unsigned(vec_on && vec.busy(now)) << VEC | unsigned(store_on && store.busy()) << STORE;
        spent[works << UNITS | waits]++;
        look_at_bus(wires);
        step_matrix(wires);
        step_vector(wires);
        step_store(wires);
        step_load(wires);
        const bool beat = wires.fetch_beat && !walker.takes(), fetch_on = !fetch.sleeps(beat, queues);
        const int32_t arrived = fetch_on ? fetch.step(beat, wires.free, queues) : -1;
        const bool aw_ready = memory.aw.ready(), w_ready = memory.w.ready(), confirmed = memory.response_valid;
        const bool writes = store.asks || walker.records(), sends = store.sends || walker.sends();
        if (memory_on || wires.asks || writes || sends) {
            memory.step(now, wires.read_ready, wires.asks && wires.free, wires.read, writes,
                        walker.records() ? walker.write() : store.request, sends,
                        walker.sends() ? walker.beat() : store.beat);
            memory_on = !memory.idle();
        }
        step_queues(wires, arrived);
        if (listed) step_walker(wires, aw_ready, w_ready, confirmed);
        return memory_on || vec_on || load_on || store_on || mm.running || restless || fetch_on ||
               (listed && walker.between());
    }

    void step_walker(const Wires& wires, bool aw_ready, bool w_ready, bool confirmed) {
        const bool ends = walker.state == Walker::RUN && ended;
        if (ends) walker.program->cycles = now - launched, walker.program->waited = load.stall_memory - waited;
        if (walker.state == Walker::LAUNCH) {
            launched = now, waited = load.stall_memory;
            semaphores = Semaphores{};
            read(walker.program->entry);
            launch(walker.program->entry, walker.program->bases);
            restless = true;
        }
        walker.step(ends, wires.fetch_beat, wires.free, aw_ready, w_ready, confirmed);
    }

    void look_at_bus(Wires& wires) {
        if (memory_on) memory.drive(now);
        // Only LOAD can refuse beats, and then stalls the other readers too (hdl/bus/axi.py).
        wires.read_ready = load.takes_beat();
        const bool beat = memory.read_valid && wires.read_ready;
        const uint8_t reader = memory.read_id;
        wires.load_beat = beat && reader == LOADS, wires.page_beat = beat && reader == PAGES;
        wires.fetch_beat = beat && reader == FETCHES;
        wires.free = memory.ar.ready();
        wires.fetch_asks = fetch.ask || walker.asks(), wires.page_asks = load.pages.ask;
        wires.asks = wires.fetch_asks || wires.page_asks || (load_on && load.asks());
        if (wires.asks)
            wires.read = walker.asks() ? walker.read() : wires.fetch_asks ? fetch.request : wires.page_asks ? load.pages.request : load.request();
    }

    void step_matrix(Wires& wires) {
        const Mm* op = mm_offered();
        if (now >= mm.until && (op || !mm.quiet())) wires.accepted[MM] = mm.step(now, op, schedule);
        if (now < mm.until) wires.ports.b = mm.asks_b.at(now), wires.ports.a = mm.asks_a.at(now);
        if (!wires.slot.mm_done) return;
        wires.given |= wires.slot.mm_signal;
        mm.running--;
        mm.ends.pop();
        finish(MM);
    }

    void step_vector(Wires& wires) {
        const int32_t word = offered(VEC);
        if (!vec_on && word < 0) return;
        wires.given |= vec.signal(now);
        if (vec.done(now)) finish(VEC);
        const Instruction* instruction = word < 0 ? nullptr : &program[size_t(word)];
        wires.accepted[VEC] = vec.step(now, instruction, word, wires.slot, mm.adds(now), schedule, wires.ports);
        vec_on = !vec.quiet(now);
    }

    void step_store(Wires& wires) {
        const int32_t word = offered(STORE);
        store.asks = store.sends = false;
        if (!store_on && word < 0) return;
        wires.accepted[STORE] =
            store.step(now, word, wires.ports, memory.aw.ready(), memory.w.ready(),
                       memory.response_valid && walker.state != Walker::CONFIRM);
        wires.given |= store.signal;
        if (store.done >= 0) finish(STORE, !store.signal);
        store_on = !store.quiet();
    }

    void step_load(Wires& wires) {
        const int32_t word = offered(LOAD);
        if (!load_on && word < 0) return;
        const bool page_taken = wires.free && !wires.fetch_asks, load_taken = page_taken && !wires.page_asks;
        wires.accepted[LOAD] = load.step(word, wires.load_beat, wires.page_beat, load_taken, page_taken,
                                         wires.slot.vec_write, dram, dram_bytes);
        wires.given |= load.signal;
        if (load.done >= 0) finish(LOAD, !load.signal);
        load_on = !load.quiet();
    }

    // Simulates queues and semaphores; instruction `arrived` (or -1) enters its queue in this cycle.
    void step_queues(const Wires& wires, int32_t arrived) {
        const int goes_to = arrived < 0 ? -1 : OPCODE_QUEUE[program[size_t(arrived)].opcode];
        const uint16_t available = semaphores.available;
        const bool* accepted = wires.accepted;
        uint16_t taken = 0;
        bool changed = wires.given != 0;
        if (restless || arrived >= 0 || accepted[LOAD] || accepted[MM] || accepted[VEC] || accepted[STORE])
            for (unsigned unit = 0; unit < UNITS; unit++) {
                if (accepted[unit]) taken |= queues[unit].wait;
                if (accepted[unit] && traced) accept(unit);
                const int32_t word = goes_to == int(unit) ? arrived : -1;
                changed |= queues[unit].step(now, available, accepted[unit], word, program);
            }
        if (wires.given | taken) semaphores.step(wires.given, taken);
        restless = changed;
    }

    void accept(unsigned unit) {
        const Dispatcher& queue = queues[unit];
        if (now > queue.since + 1) intervals.push_back({int32_t(unit), program[size_t(queue.word)].index, WAITS, 0, queue.since, now + 1});
        open[unit].push_back({int32_t(unit), program[size_t(queue.word)].index, RUNS, 0, now + 1, 0});
    }

    // `silent`: the instruction signals no semaphore, so the unit is not busy in this cycle.
    void finish(unsigned unit, bool silent = false) {
        if (!traced) return;
        Interval interval = open[unit][closed[unit]++];
        interval.end = now + !silent;
        intervals.push_back(interval);
    }
};

}  // namespace
}  // namespace weft

using weft::Machine;

#define EXPORT extern "C" __attribute__((visibility("default")))

struct Request {
    const int64_t* parameters;
    const uint32_t* bases;
    const uint8_t* dram;
    uint64_t dram_bytes, latency;
    double bytes_per_cycle, tokens;  // tokens: bytes available in the token bucket at the start
    uint32_t entry, traced;
    const uint64_t* marks;
    uint64_t mark_count, limit, most;
    const int64_t* sdram;  // SdramParameters, or null for a memory with `latency` and `bytes_per_cycle`
    weft::Listed* listed;  // programs of the list at `entry`, or null if a program is there
    uint64_t listed_count;
};

static void run(const Request* request, int64_t* outcome, Machine* machine) {
    machine->p = *reinterpret_cast<const weft::Parameters*>(request->parameters);
    machine->most = request->most;
    machine->dram = request->dram, machine->dram_bytes = request->dram_bytes;
    machine->memory.latency = request->latency, machine->memory.rate = request->bytes_per_cycle;
    machine->memory.tokens = request->tokens;
    machine->memory.on_board = request->sdram;
    if (request->sdram)
        machine->memory.board.configure(*reinterpret_cast<const weft::SdramParameters*>(request->sdram),
                                        machine->p.bus_bytes);
    machine->memory.marks.assign(request->marks, request->marks + request->mark_count);
    machine->traced = machine->memory.sampled = request->traced;
    machine->configure();
    if (request->listed) {
        machine->listed = true;
        machine->walker.start(machine->p, request->entry, request->listed, request->listed_count);
    } else {
        const int64_t faulty = machine->read(request->entry);
        *outcome = -1 - faulty;
        if (faulty >= 0) return;
        machine->launch(request->entry, request->bases);
    }
    *outcome = machine->run(request->limit);
}

// `outcome`: an Outcome, or -1 - i if word i of the program is invalid; check programs of lists before. Returns null if
// memory runs out, because exceptions must not reach Python.
EXPORT Machine* weft_timing_run(const Request* request, int64_t* outcome) {
    try {
        auto machine = std::make_unique<Machine>();
        run(request, outcome, machine.get());
        return machine.release();
    } catch (const std::exception&) {
        return nullptr;
    }
}
// Returns the index of the program's first invalid word, -1 if all are valid, or -2 if memory runs out.
EXPORT int64_t weft_timing_check(const Request* request) {
    try {
        const auto* p = reinterpret_cast<const weft::Parameters*>(request->parameters);
        return weft::read_program(request->dram, request->dram_bytes, request->entry, p->features).faulty;
    } catch (const std::exception&) {
        return -2;
    }
}
EXPORT double weft_timing_tokens(Machine* machine) { return machine->memory.tokens; }
EXPORT void weft_timing_counters(Machine* machine, uint64_t* counters) { machine->counters(counters); }
EXPORT uint64_t weft_timing_marks(Machine* machine, uint64_t* cycles) {
    const auto& marked = machine->memory.marked;
    std::copy(marked.begin(), marked.end(), cycles);
    return marked.size();
}
EXPORT uint64_t weft_timing_intervals(Machine* machine, const weft::Interval** intervals) {
    *intervals = machine->intervals.data();
    return machine->intervals.size();
}
EXPORT uint64_t weft_timing_samples(Machine* machine, const uint32_t** samples) {
    *samples = machine->memory.samples.data();
    return machine->memory.samples.size();
}
EXPORT void weft_timing_free(Machine* machine) { delete machine; }
