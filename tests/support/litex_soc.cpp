// The Verilator model of a LiteX system whose bus has a 32-bit Wishbone master in its pads, as a few C functions for
// support.litex_soc.

#include <cstdint>
#include <exception>
#include <memory>

#include "Vtop.h"
#include "verilated.h"

double sc_time_stamp() { return 0; }

namespace {

constexpr uint64_t PATIENCE = 1'000'000;  // cycles without an answer after which an access has failed

struct Soc {
    VerilatedContext context;
    std::unique_ptr<Vtop> top;
    uint64_t cycles = 0;

    void step() {
        Vtop& t = *top;
        t.eval();
        t.sys_clk = 1;
        t.eval();
        t.sys_clk = 0;
        t.eval();
        cycles++;
    }

    // A word from or to byte address `address`; false if nothing answers.
    bool access(uint32_t address, uint32_t& word, bool write) {
        Vtop& t = *top;
        t.host_adr = address >> 2;
        t.host_dat_w = word;
        t.host_sel = 15;
        t.host_we = write;
        t.host_cyc = t.host_stb = 1;
        bool answered = false;
        for (uint64_t i = 0; i < PATIENCE && !answered; i++) {
            t.eval();
            answered = t.host_ack;
            if (answered && !write) word = t.host_dat_r;
            step();
        }
        t.host_cyc = t.host_stb = 0;
        step();
        return answered;
    }
};

}  // namespace

extern "C" {

void* soc_open() try {
    auto soc = std::make_unique<Soc>();
    soc->top = std::make_unique<Vtop>(&soc->context);
    Vtop& t = *soc->top;
    t.sys_clk = 0;
    t.host_cyc = t.host_stb = t.host_we = t.host_cti = t.host_bte = 0;
    t.sys_rst = 1;
    for (int i = 0; i < 4; i++) soc->step();
    t.sys_rst = 0;
    soc->step();
    return soc.release();
} catch (const std::exception&) {
    return nullptr;
}

void soc_close(void* soc) { delete static_cast<Soc*>(soc); }

uint64_t soc_cycles(void* soc) { return static_cast<Soc*>(soc)->cycles; }

int soc_irq(void* soc) { return static_cast<Soc*>(soc)->top->irq; }

void soc_run(void* soc, uint64_t cycles) {
    while (cycles--) static_cast<Soc*>(soc)->step();
}

int soc_access(void* handle, uint32_t address, uint32_t* words, uint32_t count, int write) {
    auto& soc = *static_cast<Soc*>(handle);
    for (uint32_t i = 0; i < count; i++)
        if (!soc.access(address + 4 * i, words[i], write)) return 0;
    return 1;
}

}
