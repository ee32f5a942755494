// Loops and registers (hdl/control/sequencer.py): the effects and cycles of instructions without a queue.
#pragma once

#include "common.h"

namespace weft {

struct Sequencer {
    bool on = false;  // the configuration has loops
    uint32_t registers[REGISTER_COUNT]{};
    unsigned loading = 0, at = 0, left = 0;
    bool settled = false, jump = false, reads = false;
    bool moved = false;  // the state changed in this cycle
    uint32_t place = 0, target = 0;
    uint64_t executed = 0;

    void configure(const Parameters& p, const uint8_t* dram, uint64_t dram_bytes) {
        on = p.loops != 0, dram_ = dram, dram_bytes_ = dram_bytes;
        per_ = unsigned((p.bus_bytes < p.word_bytes ? p.bus_bytes : p.word_bytes) / 4);
        word_bytes_ = uint32_t(p.word_bytes);
    }
    // Registers have their initial values at once: no instruction that passes while they load reads them.
    void start(uint32_t entry) {
        loading = on ? REGISTER_COUNT : 0, place = entry, at = 0, settled = reads = false, executed = 0;
    }
    bool waits() const { return loading != 0 || jump; }

    // The last part of an instruction waits one cycle. Returns true if the part may pass.
    bool settles(bool last) {
        if (!on || !last || settled) return true;
        moved = settled = true;
        return false;
    }

    // Executes a part of an instruction without a queue. Returns true if the part is taken.
    bool step(const Instruction& instruction, bool last) {
        const bool slots = instruction.opcode == OP_SET || instruction.opcode == OP_NEXT;
        if (!slots) {
            if (!settles(last)) return false;
            if (last && instruction.opcode == OP_LOOP) loop(fields_of<LoopStart>(instruction));
            if (last && instruction.opcode == OP_READ) read(fields_of<ReadRegisters>(instruction));
            return true;
        }
        const bool ends = at % per_ == per_ - 1;
        moved = true;
        if (at >= SLOT_WORD && at < SLOT_WORD + SLOT_COUNT) change(instruction, at - SLOT_WORD);
        if (instruction.opcode == OP_NEXT && at == BACK_WORD)
            go(place - uint32_t(fields_of<LoopNext>(instruction).back) * word_bytes_, false);
        at = (at + 1) % (word_bytes_ / 4);
        return ends;
    }

    // Loads a register from a part that READ fetched. Returns true if the part is taken.
    bool take_words() {
        const bool ends = at % per_ == per_ - 1;
        moved = true;
        uint32_t value = 0;
        for (unsigned k = 0; k < 4 && words_ + uint64_t(4) <= dram_bytes_; k++)
            value |= uint32_t(dram_[words_ + k]) << 8 * k;
        registers[first_++ % REGISTER_COUNT] = value;
        words_ += 4, at = (at + 1) % (word_bytes_ / 4);
        if (--left == 0) go(place + word_bytes_, false);
        return ends;
    }

    // Ends an instruction without a jump.
    void pass() {
        settled = false;
        place += word_bytes_;
        executed++;
    }

    // Restarts in the cycle after a jump; parts that arrived meanwhile are dropped.
    void land() {
        jump = settled = false;
        moved = true;
        const unsigned words = READ_LENGTH / 4;
        at = reads && per_ > words ? target / READ_LENGTH % 2 * words : 0;
        words_ = target;
    }

    void tick() {
        if (loading) loading--, moved = true;
        jump = jumps_, jumps_ = false;
    }
    bool jumps() const { return jumps_; }

private:
    const uint8_t* dram_ = nullptr;
    uint64_t dram_bytes_ = 0;
    unsigned per_ = 4, first_ = 0;
    uint32_t word_bytes_ = 64, words_ = 0;
    bool jumps_ = false;

    void go(uint32_t to, bool reading) {
        moved = jumps_ = true;
        if (!reading) place = to;
        target = to, reads = reading;
        executed++;
    }
    void loop(const LoopStart& op) {
        if (int32_t(registers[op.register_]) <= 0) go(place + uint32_t(op.skip + 1) * word_bytes_, false);
    }
    void read(const ReadRegisters& op) {
        first_ = unsigned(op.first), left = unsigned(op.count);
        go(registers[op.base] + uint32_t(op.offset), true);
    }
    void change(const Instruction& instruction, unsigned slot) {
        const int64_t* fields = instruction.fields + SLOT_FIELD;
        uint32_t& value = registers[fields[2 * slot]];
        const int64_t mode = fields[2 * slot + 1], operand = fields[2 * SLOT_COUNT + slot];
        const uint32_t added = mode == MODE_ADD_REGISTER ? registers[operand & (REGISTER_COUNT - 1)] : uint32_t(operand);
        if (mode) value = added + (mode == MODE_SET ? 0 : value);
    }
};

}  // namespace weft
