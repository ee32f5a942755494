// Memories of a device, and checks of addresses in them.
//
// `weft.sim.golden` is the specification. A function that executes an instruction returns false, before it changes any
// memory, if the instruction breaks a rule or is not supported here. The golden interpreter then executes it, or raises
// the error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "words.h"

namespace weft {

constexpr int64_t MOST = int64_t(1) << 24;  // most vectors of an operand; larger instructions are not supported here

// Mirror of `State` in device.py.
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
    const uint8_t* words;          // the program, including END
    const uint8_t* foreign;        // for each instruction: 1 if the golden interpreter executes it
    const uint32_t* indices;       // for each place in the order of passing fetch: index of the instruction
    const uint32_t* frames;        // for each place: number of its frame of registers
    const uint32_t* registers;     // frames of REGISTER_COUNT registers
    const int64_t* read_only;      // `read_only_count` pairs: start and stop of DRAM that must not be written
    uint64_t read_only_count;
    const uint32_t* order[UNITS];  // for each queue: places of its instructions
    uint64_t order_count[UNITS], next[UNITS];
    int64_t available[SEMAPHORE_COUNT];
    uint64_t executed;
    const uint32_t* bases;  // registers of the current instruction; set here, not by Python
};

// A loop of an operand: each of `count` iterations adds `stride`.
struct Loop {
    int64_t count, stride;
};

// Smallest and largest offset of nested loops.
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

// Computes the addresses of three nested loops modulo 2**16, in order. Returns false if one is not below `size`.
inline bool addresses(std::vector<int32_t>& result, int64_t first, Loop a, Loop b, Loop c, int64_t size) {
    if (a.count * b.count * c.count > MOST) return false;
    result.resize(size_t(a.count * b.count * c.count));
    int32_t* next = result.data();
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

// Returns true if a coordinate is in range, as 16-bit two's complement.
inline bool within(int64_t coordinate, int64_t limit) {
    coordinate &= 0xFFFF;
    return coordinate < 0x8000 && coordinate < limit;
}

// Returns a DRAM address modulo 2**32, or -1 if `size` bytes there exceed memory.
inline int64_t dram_place(const State& state, int64_t address, int64_t size) {
    address &= 0xFFFFFFFF;
    return uint64_t(address + size) <= state.dram_bytes ? address : -1;
}

// Returns true if a program may write `size` bytes at an address.
inline bool may_write(const State& state, int64_t address, int64_t size) {
    for (uint64_t k = 0; k < state.read_only_count; k++)
        if (address < state.read_only[2 * k + 1] && state.read_only[2 * k] < address + size) return false;
    return true;
}

}  // namespace weft
