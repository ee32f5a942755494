// The sequential core's processor (hdl/sequential/processor.py): executes the words of the microprogram one by one, and
// computes the cycle of each. hdl/sequential/microprogram.py has the words, hdl/sequential/assembler.py their meaning.
//
// The pipeline has four stages: a word is decoded, selects its operand, is executed, and its result reaches units. It
// stalls in decode on a hazard with an earlier word (`Processor._hazard`), and in operand selection while a unit has no
// operand for it.
#pragma once

#include "sequential_mover.h"
#include "sequential_units.h"

namespace weft::sequential {

enum Outcome { DONE, HANGS, TIMEOUT, OUTSIDE };

// A decoded word of the microprogram.
struct Word {
    bool jump, write, negate, call, back, is_signed;
    uint8_t function, source, out, condition, compared, width;
    int32_t constant;
    uint32_t operand;

    static Word decode(uint64_t bits, unsigned operand_bits) {
        Word word{};
        const auto field = [bits](unsigned at, unsigned width) { return uint32_t(bits >> at & ((1ull << width) - 1)); };
        word.operand = field(OPERAND_LOW, operand_bits);
        word.constant = int32_t(sign_extended(word.operand, operand_bits));
        word.compared = word.operand & ((1u << COMPARED_WIDTH) - 1);
        word.jump = bits & 1;
        if (word.jump) {
            word.condition = field(1, CONDITION_WIDTH);
            word.negate = field(1 + CONDITION_WIDTH, 1), word.call = field(2 + CONDITION_WIDTH, 1);
            word.back = field(3 + CONDITION_WIDTH, 1);
            return word;
        }
        word.function = field(1, FUNCTION_WIDTH), word.source = field(1 + FUNCTION_WIDTH, SOURCE_WIDTH);
        word.write = field(1 + FUNCTION_WIDTH + SOURCE_WIDTH, 1), word.out = field(OPERAND_LOW - OUT_WIDTH, OUT_WIDTH);
        if (word.function == FUNCTION_FIELD) {
            word.width = FIELD_WIDTHS[word.out], word.out = 0;
            word.is_signed = word.source >> 1, word.source = FIELD_SOURCE;
        }
        return word;
    }

    static constexpr uint8_t FIELD_SOURCE = 4;  // in place of a source
};

class Processor {
public:
    CoreParameters p{};
    std::vector<Word> program;
    std::vector<uint32_t> memory;
    Mover mover;
    Multiplier multiplier;
    Store store;
    Rows rows;
    ShiftVector gathered;
    Cycle begun = 0, ended = 0;
    Cycle busy[UNITS]{};
    uint64_t waits[UNITS]{};  // cycles in which the processor waits for memory
    uint32_t error = 0;

    void configure() {
        const unsigned n = unsigned(p.n);
        mover.n = gathered.n = store.n = n, mover.bus = unsigned(p.bus_bytes);
        mover.gathered = &gathered, mover.vector = store.vector;
        store.size = unsigned(p.scratchpad_size), store.bytes.assign(size_t(store.size) * n, 0);
        store.table.assign(size_t(1) << log2_of(uint64_t(p.table_entries) + 1), 0);
        store.table_step = log2_of(uint64_t(p.table_step));
        multiplier.unsigned_bits = unsigned(p.mantissa_bits), multiplier.signed_bits = unsigned(p.signed_bits);
        rows.configure(n, unsigned(p.accumulator_size), p.wide_activations != 0, &store);
        lane_bits_ = log2_of(n);
        depth_mask_ = uint32_t(memory.size() - 1);
    }

    Outcome run(Cycle limit);

private:
    uint32_t index_ = 0, current_ = 0, position_ = 0, column_ = 0, depth_mask_ = 0;
    bool source_ = false;
    unsigned lane_bits_ = 2;
    int64_t operation_[sizeof(MicroOp) / sizeof(int64_t)]{};
    uint32_t events_ = 0;
    Cycle since_ = 0;
    bool finished_ = false, hangs_ = false;

    // Waits for a condition, and counts waits for memory for the unit of the current instruction.
    template <class Condition>
    Cycle wait_for(Cycle from, Condition holds) {
        mover.advance(from);
        if (holds()) return from;
        const uint64_t before = mover.waits;
        hangs_ |= !mover.until(holds);
        for (unsigned unit = 0; unit < UNITS; unit++)
            if (events_ >> unit & 1) waits[unit] += mover.waits - before;
        return mover.now();
    }
    Cycle wait_for_word(Cycle from) {
        return wait_for(from, [this] { return mover.here(); });
    }

    // Returns true if a jump's condition holds in cycle `at`.
    bool holds(unsigned condition, Cycle at, uint32_t accumulator) {
        switch (condition) {
            case CONDITION_ALWAYS: return true;
            case CONDITION_ZERO: return accumulator == 0;
            case CONDITION_NEGATIVE: return accumulator >> 31;
            case CONDITION_STARTED: return true;
            case CONDITION_COLUMN_ZERO: return column_ == 0;
            case CONDITION_IN_RANGE: return rows.in_range();
            case CONDITION_ROWS_DONE: return at >= rows.done;
            case CONDITION_LANES_ZERO: return !(index_ & ((1u << lane_bits_) - 1));
        }
        mover.advance(at);
        if (condition == CONDITION_MEMORY_IDLE) return mover.idle();
        if (condition == CONDITION_MOVED) return mover.moved();
        return mover.length_zero();
    }

    // Returns the cycle in which a jump to itself, which tests its condition every cycle, ends.
    Cycle stay(unsigned condition, Cycle from) {
        if (condition == CONDITION_MEMORY_IDLE) return wait_for(from, [this] { return mover.idle(); });
        if (condition == CONDITION_MOVED) return wait_for(from, [this] { return mover.moved(); });
        if (condition == CONDITION_ROWS_DONE) return std::max(from, rows.done);
        hangs_ = true;
        return from;
    }

    // hdl/sequential/processor.py: returns the address of an element of a kernel's registers or predicates.
    uint32_t lane_address(uint32_t operand) const {
        const MicroOp& op = reinterpret_cast<const MicroOp&>(operation_);
        const uint32_t lanes = (1u << lane_bits_) - 1;
        uint32_t lane = index_ & lanes, row = index_ >> lane_bits_ & ((1u << LANE_ROW_BITS) - 1), block = LANE_STAGED;
        const auto registers = [&](int64_t number, int64_t in_memory) {
            if (in_memory) row = 0;
            else block = LANE_REGISTERS + uint32_t(number);
        };
        switch (operand >> 1 & ((1u << PART_WIDTH) - 1)) {
            case PART_FIRST: registers(op.a & (LANE_REGISTERS - 1), op.a_memory); break;
            case PART_RESULT: registers(op.d & (LANE_REGISTERS - 1), op.d_memory); break;
            case PART_SECOND:
                lane ^= (1u << op.swap >> 1) & lanes;
                if (op.b_immediate) row = 1, lane = 0;
                else block = LANE_REGISTERS + uint32_t(op.b);
                break;
            case PART_PREDICATE: block = LANE_PREDICATES; break;
            default: row = 0;
        }
        const uint32_t within = (block << LANE_ROW_BITS | row) << lane_bits_ | lane;
        const unsigned bits = lane_bits_ + LANE_ROW_BITS + log2_of(2 * LANE_REGISTERS);
        return (~0u << bits | within) & depth_mask_;
    }

    uint32_t indexed(uint32_t operand) {
        if (!p.lanes || !(operand >> 1 & ((1u << PART_WIDTH) - 1))) return (index_ | (operand & 1)) & depth_mask_;
        const uint32_t address = lane_address(operand);
        if (operand >> (1 + PART_WIDTH) & 1) {
            const uint32_t lanes = (1u << lane_bits_) - 1;
            index_ = (index_ & ~lanes) | ((index_ + 1) & lanes);
        }
        return address;
    }

    // Returns the next bits of the instruction, and sets `done` to the cycle in which they are taken.
    uint32_t field(const Word& word, Cycle& done) {
        const unsigned width = word.width, end = position_ + width;
        uint64_t window = current_;
        if (end >= 32) {
            done = wait_for_word(done);
            current_ = mover.word();
            window |= uint64_t(current_) << 32;
            mover.take(done);
        }
        const uint64_t bits = window >> position_ & ((1ull << width) - 1);
        position_ = end & 31;
        return uint32_t(word.is_signed ? sign_extended(bits, width) : int64_t(bits));
    }

    // Returns the value of a port, and advances `done` to the cycle in which it is read.
    uint32_t port(const Word& word, uint32_t accumulator, Cycle& done) {
        const uint8_t byte = store.vector[column_];
        switch (word.operand) {
            case PORT_ACCUMULATOR: return accumulator;
            case PORT_WORD: {
                done = wait_for_word(done);
                const uint32_t value = mover.word();
                mover.take(done);
                return value;
            }
            case PORT_PRODUCT:
            case PORT_RAW:
                done = std::max(done, multiplier.ready());
                return multiplier.result(word.operand == PORT_RAW);
            case PORT_ELEMENT: return uint32_t(source_ ? int8_t(byte) : rows.row[column_]);
            case PORT_BYTE: return uint32_t(int32_t(int8_t(byte)));
            case PORT_APPEND: return accumulator << 8 | byte;
            case PORT_SUM: return uint32_t(rows.sums[column_]);
            case PORT_TABLE: return store.entry;
            case PORT_EXPONENT: return accumulator >> p.multiplier_bits & 63;
        }
        return 0;
    }

    void next_column() { column_ = (column_ + 1) & uint32_t(p.n - 1); }
    void give(const Word& word, uint32_t value, Cycle at);
    void give_memory(unsigned target, uint32_t value, Cycle at);
};

inline void Processor::give(const Word& word, uint32_t value, Cycle at) {
    switch (word.out) {
        case OUT_INDEX: index_ = value & depth_mask_; break;
        case OUT_MULTIPLICAND: multiplier.multiplicand = int32_t(value); break;
        case OUT_SHIFT: multiplier.set_shift(value); break;
        case OUT_MULTIPLY: multiplier.start(value, false, false, at); break;
        case OUT_MULTIPLY_ADD: multiplier.start(value, true, false, at); break;
        case OUT_COLUMN: column_ = value & uint32_t(p.n - 1); break;
        case OUT_PUSH: gathered.push(uint8_t(value)), next_column(); break;
        case OUT_SCRATCHPAD_WRITE: gathered.copy(store.at(value)); break;
        case OUT_BYTE_WRITE: store.at(value)[column_] = gathered.bytes[gathered.first], gathered.turn(); break;
        case OUT_SCRATCHPAD_READ: store.read(value); break;
        case OUT_ACCUMULATOR_READ: rows.read_row(); break;
        case OUT_ACCUMULATOR_WRITE: rows.write(column_, value), next_column(); break;
        case OUT_SOURCE: source_ = value & 1; break;
        case OUT_A: rows.a = value; break;
        case OUT_A_STEP: rows.a_step = value; break;
        case OUT_READ_A: rows.step_a(); break;
        case OUT_WEIGHT: rows.weight(column_), next_column(); break;
        case OUT_C: rows.c = value; break;
        case OUT_C_STEP: rows.c_step = value; break;
        case OUT_X: rows.x = value & 0xFFFF; break;
        case OUT_X_STEP: rows.x_step = int8_t(value); break;
        case OUT_BOUND: rows.bound = value & 0xFFFF; break;
        case OUT_ROW_VALID: rows.row_valid = rows.in_range(); break;
        case OUT_ROWS: rows.start(value, at); break;
        case OUT_MODE: rows.mode(value); break;
        case OUT_TABLE_ADDRESS: store.table_address(value); break;
        case OUT_TABLE_WRITE: store.table_write(value); break;
        case OUT_MEMORY: give_memory(word.operand & 15, value, at); break;
        case OUT_COLUMN_NEXT: next_column(); break;
        case OUT_BITS: current_ = value, position_ = 0; break;
    }
}

inline void Processor::give_memory(unsigned target, uint32_t value, Cycle at) {
    switch (target) {
        case TO_MEMORY_FINISH: finished_ = true, error = value & 1, ended = at; break;
        case TO_MEMORY_EVENTS:
            for (unsigned unit = 0; unit < UNITS; unit++)
                if (events_ >> unit & 1) busy[unit] += at - since_;
            events_ = value, since_ = at;
            break;
        case TO_MEMORY_OPERATION:
            for (unsigned k = 0; k < sizeof operation_ / sizeof *operation_; k++)
                operation_[k] = uint64_t(value) >> FIELDS_MICRO[k].position & ((1u << FIELDS_MICRO[k].width) - 1);
            break;
        case TO_MEMORY_MULTIPLY_SIGNED: multiplier.start(value, false, true, at); break;
        default: mover.give(target, value, at);
    }
}

// `next` is the first cycle in which the word at `pc` can be decoded. The other variables are cycles in which earlier
// words selected their operands: `chosen` and `before` of the last word and the last but one, `given` of the last word
// for a unit, `wrote` of the last word that wrote data memory (`at_last` and `at_before` are such addresses), and
// `moved` of the last word that changed the index of `SOURCE_INDEXED`.
inline Outcome Processor::run(Cycle limit) {
    constexpr uint32_t NOWHERE = ~0u;
    uint32_t accumulator = 0, pc = 0, back = 0, at_last = NOWHERE, at_before = NOWHERE;
    Cycle next = 8, chosen = 0, before = 0, given = 0, wrote = 0, moved = 0;
    limit = limit > NEVER / 2 ? NEVER : limit;
    while (!finished_) {
        const Word& word = program[pc++];
        if (word.jump) {
            const unsigned condition = word.condition;
            if (condition != CONDITION_ALWAYS && condition != CONDITION_LANES_ZERO) {
                next = std::max(next, chosen + 2);
                if (condition > CONDITION_NEGATIVE) next = std::max(next, given + 3);
                if (condition == CONDITION_STARTED && !begun) begun = next;
            }
            if (holds(condition, next, accumulator) != word.negate) {
                if (!word.back && word.operand == pc - 1) {
                    next = stay(condition, next);
                    pc--;
                } else {
                    const uint32_t after = pc;
                    pc = word.back ? back : word.operand;
                    if (word.call) back = after;
                    next++;
                }
                if (begun && next - begun > limit) return TIMEOUT;
            } else {
                next++;
            }
            if (hangs_) return HANGS;
            if (mover.outside) return OUTSIDE;
            continue;
        }
        uint32_t value = 0, address = word.operand & depth_mask_;
        Cycle done = next + 1;
        switch (word.source) {
            case SOURCE_MEMORY:
                if (word.compared == at_last) done = std::max(done, chosen + 3);
                else if (word.compared == at_before) done = std::max(done, before + 3);
                value = memory[address];
                break;
            case SOURCE_INDEXED:
                if (word.compared == at_last) done = std::max(done, chosen + 3);
                else if (word.compared == at_before) done = std::max(done, before + 3);
                done = std::max({done, moved + 3, wrote + 3});
                address = indexed(word.operand);
                value = memory[address];
                break;
            case SOURCE_CONSTANT: value = uint32_t(word.constant); break;
            case SOURCE_PORT:
                done = std::max({done, chosen + 2, given + 3});
                value = port(word, accumulator, done);
                break;
            default:
                done = std::max(done, given + 3);
                value = field(word, done);
        }
        switch (word.function) {
            case FUNCTION_KEEP: break;
            case FUNCTION_ADD: accumulator += value; break;
            case FUNCTION_SUB: accumulator -= value; break;
            case FUNCTION_AND: accumulator &= value; break;
            case FUNCTION_MIN: accumulator = uint32_t(std::min(int32_t(accumulator), int32_t(value))); break;
            case FUNCTION_MAX: accumulator = uint32_t(std::max(int32_t(accumulator), int32_t(value))); break;
            case FUNCTION_ROUND: accumulator += value + multiplier.round(word.operand & 1); break;
            default: accumulator = value;
        }
        before = chosen, at_before = at_last;
        next = chosen = done;
        at_last = NOWHERE;
        if (word.write) {
            memory[address] = accumulator;
            at_last = address & ((1u << COMPARED_WIDTH) - 1), wrote = done;
        }
        if (word.out) {
            given = done;
            if (word.out == OUT_INDEX || (word.out == OUT_MEMORY && p.lanes)) moved = done;
            give(word, accumulator, done + 2);
        }
        if (hangs_) return HANGS;
    }
    mover.advance(ended + 1);
    return DONE;
}

}  // namespace weft::sequential
