// The kernel engine: the slots of its sequence (hdl/vector/kernel_sequence.py), and their reads (hdl/vector/kernel.py).
// The pipeline behind a granted slot has a fixed latency.
#pragma once

#include <algorithm>

#include "common.h"

namespace weft {

struct KernelEngine {
    struct Request {
        bool ask = false, scratchpad = false, real = false, write = false, end = false;
        uint8_t bank = 0, dst = 0;
    };

    const Parameters* p = nullptr;
    SkidBuffer<Request> ahead;
    Request request;
    bool valid = false, running = false;

    void configure(const Parameters& parameters) {
        p = &parameters;
        shift_ = log2_of(uint64_t(p->scratchpad_depth)), mask_ = uint32_t(p->scratchpad_size - 1);
        c_shift_ = log2_of(uint64_t(p->accumulator_depth)), c_mask_ = uint32_t(p->accumulator_size - 1);
    }

    void fill(const Microcode& code) {
        const int64_t words[] = {code.op0, code.op1, code.op2, code.op3, code.op4, code.op5, code.op6};
        for (int64_t k = 0; k < code.count; k++) {
            int64_t values[sizeof FIELDS_MICRO / sizeof *FIELDS_MICRO];
            for (unsigned field = 0; field < sizeof FIELDS_MICRO / sizeof *FIELDS_MICRO; field++) {
                const Field& place = FIELDS_MICRO[field];
                values[field] = words[k] >> place.position & ((int64_t(1) << place.width) - 1);
            }
            memory_[(code.entry + k) % MICRO_MOST] = *reinterpret_cast<const MicroOp*>(values);
        }
    }

    // The first slots have no micro-operation, because it is still being read.
    void load(const Kernel& instruction) {
        kernel_ = instruction;
        op_ = MicroOp{};
        block_ = first_row_ = column_ = row_ = group_ = pause_ = age_ = 0;
        todo_ = false, started_ = false, running = true;
    }

    // Simulates a cycle. `adds`: 1 + the busy bank of the accumulator, or 0; `grants`: asks for a bank of the
    // scratchpad.
    template <class Grants>
    void step(Cycle now, unsigned adds, Schedule& schedule, Competition& asks, uint64_t& stalls, Grants grants) {
        bool granted = valid;
        if (valid && request.ask) {
            granted = request.scratchpad ? grants(request.bank, asks) : adds != 1u + request.bank;
            stalls += !granted;
        }
        if (granted && request.real) {
            const Cycle result = now + Cycle(p->kernel_result);
            if (request.write) schedule.at(result + 1).vec_write = uint8_t(1 + request.dst);
            if (request.end) schedule.at(result).vec_end = true;
        }
        const bool steps = running && ahead.ready(), room = !valid || granted, taken = ahead.valid && room;
        if (room) valid = ahead.valid;
        if (taken) request = ahead.out;
        if (!steps && !ahead.valid) return;
        ahead.step(steps, steps ? slot() : Request{}, room);
    }

private:
    unsigned shift_ = 0, c_shift_ = 0;
    uint32_t mask_ = 0, c_mask_ = 0;
    MicroOp memory_[MICRO_MOST]{}, op_{};
    Kernel kernel_{};
    int64_t at_ = 0, block_ = 0, first_row_ = 0, column_ = 0, row_ = 0, group_ = 0, pause_ = 0, age_ = 0;
    bool todo_ = false, started_ = false;

    bool serial() const { return op_.op == OP_MICRO_RECIPROCAL || op_.op == OP_MICRO_RSQRT; }
    bool onward() const { return op_.again && column_ + 1 < kernel_.ox; }
    int64_t rows() const { return std::min<int64_t>(kernel_.oy - first_row_, STRIP_ROW_COUNT); }
    bool last_strip() const { return first_row_ + STRIP_ROW_COUNT >= kernel_.oy; }
    bool done() const {
        return started_ && op_.end && !onward() && last_strip() && block_ + 1 == kernel_.ob;
    }
    int64_t address(int64_t base, int64_t ob, int64_t oy, int64_t ox) const {
        return base + block_ * ob + (first_row_ + row_) * oy + column_ * ox;
    }
    int64_t read() const {
        const Kernel& k = kernel_;
        const int64_t operand = op_.a % 4, vector = op_.a / 4;
        if (operand == 0) return address(k.src + vector, k.src_ob, k.src_oy, k.src_ox);
        if (operand == 1) return address(k.b + vector, k.b_ob, k.b_oy, k.b_ox);
        if (operand == 2) return address(k.c + vector, k.c_ob, k.c_oy, k.c_ox);
        return address(k.d + vector, k.d_ob, k.d_oy, k.d_ox);
    }
    int64_t written() const {
        const Kernel& k = kernel_;
        const int64_t vector = op_.d / 2 % 2;
        if (op_.d % 2 == 0) return address(k.dst + vector, k.dst_ob, k.dst_oy, k.dst_ox);
        return address(k.dst2 + vector, k.dst2_ob, k.dst2_oy, k.dst2_ox);
    }

    // Returns the slot of this cycle, and advances to the next slot.
    Request slot() {
        Request request;
        const bool real = todo_ && !pause_, uniform = serial() && op_.unsigned_;
        const bool row_done = uniform || group_ == p->groups - 1, last = row_done && row_ == rows() - 1;
        const bool ends = (real && last && !serial()) || (!todo_ && pause_ <= 1);
        const bool turn = ends && age_ == p->kernel_least - 1;
        if (real) {
            request.real = true, request.ask = op_.a_memory, request.scratchpad = kernel_.source || op_.a % 4;
            const uint32_t from = uint32_t(read());
            request.bank = uint8_t(request.scratchpad ? (from & mask_) >> shift_ : (from & c_mask_) >> c_shift_);
            request.dst = uint8_t((uint32_t(written()) & mask_) >> shift_);
            request.write = op_.d_memory && row_done, request.end = done() && last;
        }
        if (age_ != p->kernel_least - 1) age_++;
        if (pause_) pause_--;
        if (real) {
            todo_ = !last, group_ = row_done ? 0 : group_ + 1, row_ += row_done;
            const bool root = op_.op == OP_MICRO_RSQRT;
            if (serial()) pause_ = (uniform ? root ? p->kernel_row_root : p->kernel_row_reciprocal
                                            : root ? p->kernel_root : p->kernel_reciprocal) - 1;
        }
        if (turn) go_on();
        return request;
    }

    void go_on() {
        running = !done(), todo_ = true, age_ = row_ = group_ = 0;
        if (!running) return;
        const bool again = onward();
        if (!started_) at_ = kernel_.start;
        else if (again) at_ = kernel_.start + op_.target;
        else at_ = op_.end ? kernel_.start : at_ + 1;
        if (op_.again) column_ = again ? column_ + 1 : 0;
        if (started_ && op_.end && !again) {
            if (last_strip()) block_++, first_row_ = 0;
            else first_row_ += STRIP_ROW_COUNT;
        }
        started_ = true;
        op_ = memory_[at_ % MICRO_MOST];
    }
};

}  // namespace weft
