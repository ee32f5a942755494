// The memories of a device, and checks of the addresses that instructions count in them. `weft.sim.golden` is the
// specification, and tests hold this to it. Every function here that carries out an instruction returns false, before
// it has changed anything, if the instruction breaks a rule or is one that it leaves alone: then the specification
// carries it out, and says what is wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "words.h"

namespace weft {

constexpr int64_t MOST = int64_t(1) << 24;  // vectors of an operand that are held at a time; larger ones are left alone

// As `State` in library.py.
struct State {
    uint8_t* dram;
    uint64_t dram_bytes;
    int8_t* scratchpad;
    int32_t* accumulator;
    int32_t* alignments;
    int32_t* maxima;
    int64_t* sums;
    const uint8_t* table;
    const int8_t* lookup;
    int64_t n, scratchpad_size, accumulator_size, alignment_count, state_count, table_depth, mantissa_bits;
    int64_t depthwise_taps, lookup_tables, bus_bytes, wide_activations;
    const uint8_t* words;          // the program, with END behind it
    const uint8_t* foreign;        // for each instruction, whether it is left to the specification
    const uint32_t* indices;       // the instructions in the order in which they pass fetch,
    const uint32_t* frames;        // and for each of these places the frame of registers that it has,
    const uint32_t* registers;     // REGISTER_COUNT of them
    const int64_t* read_only;      // first address and one past the last of what must not be written, so many times
    uint64_t read_only_count;
    const uint32_t* order[UNITS];  // for each queue, the places of instructions that go to it
    uint64_t order_count[UNITS], next[UNITS];
    int64_t available[SEMAPHORE_COUNT];
    uint64_t executed;
    const uint32_t* bases;  // the registers of the instruction that is carried out; nothing that Python sets
};

// A loop around an operand: `stride` is added in each of its `count` iterations.
struct Loop {
    int64_t count, stride;
};

// The smallest and the largest sum of the strides of some loops.
struct Span {
    int64_t low = 0, high = 0;

    Span(std::initializer_list<Loop> loops) {
        for (const Loop& loop : loops) {
            const int64_t reach = (loop.count - 1) * loop.stride;
            (reach < 0 ? low : high) += reach;
        }
    }
    bool inside(int64_t first, int64_t size) const { return first + low >= 0 && first + high < size; }
};

// The addresses of three nested loops modulo 2**16, in order. False if one of them is not below `size`.
inline bool addresses(std::vector<int32_t>& found, int64_t first, Loop a, Loop b, Loop c, int64_t size) {
    if (a.count * b.count * c.count > MOST) return false;
    found.resize(size_t(a.count * b.count * c.count));
    int32_t* next = found.data();
    int64_t largest = 0;
    for (int64_t i = 0; i < a.count; i++)
        for (int64_t j = 0; j < b.count; j++) {
            const int64_t start = first + i * a.stride + j * b.stride;
            for (int64_t k = 0; k < c.count; k++) {
                const int64_t address = (start + k * c.stride) & 0xFFFF;
                largest = std::max(largest, address);
                *next++ = int32_t(address);
            }
        }
    return largest < size;
}

// Whether a coordinate lies in range, as 16-bit two's complement.
inline bool within(int64_t coordinate, int64_t limit) {
    coordinate &= 0xFFFF;
    return coordinate < 0x8000 && coordinate < limit;
}

// The position of `size` bytes at a DRAM address modulo 2**32, or -1 if they leave memory.
inline int64_t dram_place(const State& state, int64_t address, int64_t size) {
    address &= 0xFFFFFFFF;
    return uint64_t(address + size) <= state.dram_bytes ? address : -1;
}

// Whether a program may write so many bytes at an address.
inline bool may_write(const State& state, int64_t address, int64_t size) {
    for (uint64_t k = 0; k < state.read_only_count; k++)
        if (address < state.read_only[2 * k + 1] && state.read_only[2 * k] < address + size) return false;
    return true;
}

}  // namespace weft
