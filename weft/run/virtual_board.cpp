// C interface to the Verilator model of a board's top component with a serial line, for weft.run.virtual.
//
// Bytes to the board wait in a queue, and are sent on `rx` as 8N1 at a fixed number of clock cycles per bit. `tx` is
// sampled in the middle of each bit.

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>

#include "Vtop.h"
#include "verilated.h"

double sc_time_stamp() { return 0; }

namespace {

struct Board {
    VerilatedContext context;
    std::unique_ptr<Vtop> top;
    uint64_t cycles = 0;
    unsigned divisor = 4;
    std::deque<uint8_t> waiting, received;
    unsigned out_bits = 1, out_left = 0;              // bits to send, next bit lowest; cycles left for all of them
    unsigned in_bits = 0, in_count = 0, in_wait = 0;  // bits received; their number; cycles to the next sample
    bool receiving = false;

    void step() {
        Vtop& t = *top;
        if (out_left == 0 && !waiting.empty()) {
            out_bits = 1u << 9 | unsigned(waiting.front()) << 1;
            out_left = 10 * divisor;
            waiting.pop_front();
        }
        t.rx = out_left ? out_bits & 1 : 1;
        if (out_left && --out_left % divisor == 0) out_bits >>= 1;
        t.clk = 1;
        t.eval();
        t.clk = 0;
        t.eval();
        cycles++;
        sample(t.tx);
    }

    void sample(bool level) {
        if (!receiving) {
            if (level) return;
            receiving = true;
            in_bits = in_count = 0;
            in_wait = divisor + divisor / 2;
        }
        if (--in_wait) return;
        in_wait = divisor;
        if (in_count < 8) {
            in_bits |= unsigned(level) << in_count++;
            return;
        }
        if (level) received.push_back(in_bits);  // without a stop bit it is line noise
        receiving = false;
    }
};

}  // namespace

extern "C" {

// `arguments` are the simulator's command line. Returns null if memory runs out: exceptions must not reach Python.
void* board_open(unsigned divisor, int count, const char** arguments) try {
    auto board = std::make_unique<Board>();
    board->context.commandArgs(count, arguments);
    board->divisor = divisor;
    board->top = std::make_unique<Vtop>(&board->context);
    Vtop& t = *board->top;
    t.rx = 1;
    t.clk = 0;
    t.rst = 1;
    for (int i = 0; i < 4; i++) board->step();
    t.rst = 0;
    return board.release();
} catch (const std::exception&) {
    return nullptr;
}

void board_close(void* handle) {
    auto* board = static_cast<Board*>(handle);
    board->top->final();
    delete board;
}

// Sends `size` bytes and runs for some cycles. Stores up to `capacity` received bytes in `got` and returns their
// number, or a larger number if memory runs out.
uint64_t board_run(void* handle, uint64_t cycles, const uint8_t* bytes, uint64_t size, uint8_t* got,
                   uint64_t capacity) try {
    auto* board = static_cast<Board*>(handle);
    board->waiting.insert(board->waiting.end(), bytes, bytes + size);
    for (uint64_t i = 0; i < cycles; i++) board->step();
    uint64_t count = 0;
    while (count < capacity && !board->received.empty()) {
        got[count++] = board->received.front();
        board->received.pop_front();
    }
    return count;
} catch (const std::exception&) {
    return ~uint64_t(0);
}

// Number of bytes that are not sent yet.
uint64_t board_waiting(void* handle) { return static_cast<Board*>(handle)->waiting.size(); }

uint64_t board_cycles(void* handle) { return static_cast<Board*>(handle)->cycles; }

// Mask of broken rules of the SDRAM, see weft.boards.sdram.model.
uint32_t board_violation(void* handle) { return static_cast<Board*>(handle)->top->violation; }

// Mask of broken rules of the flash chip, see weft.boards.flash.model.
uint32_t board_flash_violation(void* handle) { return static_cast<Board*>(handle)->top->flash_violation; }

}
