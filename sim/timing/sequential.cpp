// The cycle model of hdl/sequential/core.py. Called by sequential.py.

#include "sequential_processor.h"

#include <exception>
#include <memory>

using weft::sequential::Processor;

#define EXPORT extern "C" __attribute__((visibility("default")))

struct SequentialRequest {
    const int64_t* parameters;
    const uint64_t* words;
    uint64_t word_count;
    const uint32_t* memory;  // initial data memory
    uint64_t memory_words;
    uint8_t* dram;  // the program writes to it
    uint64_t dram_bytes, latency;
    double bytes_per_cycle, tokens;  // tokens: as in model.cpp
    const uint64_t* marks;
    uint64_t mark_count, limit;
    uint64_t flash_window, flash_page, flash_jump, flash_word;  // see sim/memories.py; window 0: no flash
};

static void run(const SequentialRequest* request, int64_t* outcome, Processor* core) {
    core->p = *reinterpret_cast<const weft::CoreParameters*>(request->parameters);
    for (uint64_t k = 0; k < request->word_count; k++)
        core->program.push_back(weft::sequential::Word::decode(request->words[k], unsigned(core->p.operand_bits)));
    core->memory.assign(request->memory, request->memory + request->memory_words);
    core->mover.dram = request->dram, core->mover.dram_bytes = request->dram_bytes;
    core->mover.marks.assign(request->marks, request->marks + request->mark_count);
    auto& link = core->mover.link;
    link.latency = request->latency, link.rate = request->bytes_per_cycle, link.bus = double(core->p.bus_bytes);
    link.tokens = request->tokens;
    if (link.rate > 0)
        while (link.tokens < link.bus + link.rate) link.tokens += link.rate;
    auto& flash = core->mover.flash;
    flash.window = uint32_t(request->flash_window), flash.page = uint32_t(request->flash_page);
    flash.bus = unsigned(core->p.bus_bytes);
    flash.jump = request->flash_jump, flash.word = request->flash_word;
    core->configure();
    *outcome = core->run(request->limit);
}

// `outcome`: an Outcome. Returns null if memory runs out.
EXPORT Processor* weft_sequential_run(const SequentialRequest* request, int64_t* outcome) {
    try {
        auto core = std::make_unique<Processor>();
        run(request, outcome, core.get());
        return core.release();
    } catch (const std::exception&) {
        return nullptr;
    }
}
EXPORT double weft_sequential_tokens(Processor* core) { return core->mover.link.tokens; }
EXPORT void weft_sequential_counters(Processor* core, uint64_t* counters) {
    counters[weft::COUNT_CYCLES] = core->ended - core->begun + 1;
    counters[weft::COUNT_ARRAY_ACTIVE] = core->rows.active;
    counters[weft::COUNT_READ_BEATS] = core->mover.read_beats;
    counters[weft::COUNT_WRITE_BEATS] = core->mover.write_beats;
    counters[weft::COUNT_LOAD_BUSY] = core->busy[weft::LOAD], counters[weft::COUNT_MM_BUSY] = core->busy[weft::MM];
    counters[weft::COUNT_VEC_BUSY] = core->busy[weft::VEC], counters[weft::COUNT_STORE_BUSY] = core->busy[weft::STORE];
    counters[weft::COUNT_LOAD_MEMORY] = core->waits[weft::LOAD];
    counters[weft::COUNT_STORE_MEMORY] = core->waits[weft::STORE];
}
EXPORT uint64_t weft_sequential_marks(Processor* core, uint64_t* cycles) {
    const auto& marked = core->mover.marked;
    for (size_t k = 0; k < marked.size(); k++) cycles[k] = marked[k] - core->begun;
    return marked.size();
}
EXPORT void weft_sequential_free(Processor* core) { delete core; }
