// The vector unit: its sequence of reads (hdl/vector/vec.py), their stalls with softmax (hdl/vector/vec_softmax.py,
// hdl/lib/arithmetic.py), and the writes of the fixed-latency pipelines behind them.
#pragma once

#include <algorithm>

#include "common.h"
#include "kernel.h"

namespace weft {

// hdl/lib/arithmetic.py. Normalising a row's sum depends on data, so it is assumed to take `divider_normalising`
// cycles.
struct Divider {
    int64_t age = 0, normal_left = 0, left = 0, rows = 0;
    bool fetched = false, occupied = false, issued = false;

    bool ready(const Parameters& p) const { return occupied && !issued && left <= p.divider_lead; }
    void start(int64_t count) {
        *this = Divider{};
        rows = count;
    }
    void step(const Parameters& p, bool take, bool issue) {
        const bool steps = fetched && !normal_left && (!occupied || take);
        if (take) occupied = false;
        if (issue) issued = true;
        if (steps) left = p.divider_steps, occupied = true, issued = false, rows--;
        else if (left) left--;
        if (steps) age = 0, fetched = false;
        else if (rows && !fetched) {
            if (age++ == p.divider_read) fetched = true, normal_left = p.divider_normalising;
        } else if (normal_left) normal_left--;
    }
};

struct VectorUnit : VectorWalk {
    // An element to read, with flags of its position in the loops.
    struct Element {
        uint8_t second = 0, source = 0, dst = 0;  // banks
        bool ask_second = false, ask_source = false, last = false, group_last = false, end = false, row = false;
    };

    const Parameters* p = nullptr;
    Nest<VectorWalk::LOOPS, VectorWalk::VALUES> nest;
    SkidBuffer<Element> ahead;
    Element element;
    bool valid = false, active = false;
    // All reads of the instruction are done; the previous instruction is not done; an offered instruction may overlap.
    bool read = false, behind = false, early = false;
    Cycle settled = 0;  // cycle from which on the later stages work on the instruction
    int opcode = 0;
    bool from_scratchpad = false, add = false, same_row = false, same_column = false;
    uint16_t h = 1, w = 1, mask = 0, mask_before = 0, ended_mask = 0;  // ended_mask: of the last ended instruction
    int64_t left = 0;
    uint32_t parameter = 0;
    int32_t index = -1;
    Cycle start = 0, end = NEVER - 8;  // cycles of the instruction's acceptance and last result
    // Softmax.
    Divider divider;
    int64_t under_way = 0, rows = 0;
    uint64_t stall_port = 0;
    KernelEngine kernel;

    void configure(const Parameters& parameters) {
        p = &parameters;
        kernel.configure(parameters);
        shift_ = log2_of(uint64_t(p->scratchpad_depth)), mask_ = uint32_t(p->scratchpad_size - 1);
        c_shift_ = log2_of(uint64_t(p->accumulator_depth)), c_mask_ = uint32_t(p->accumulator_size - 1);
    }
    bool busy(Cycle now) const { return active || now == end + 1 || now == end + 2; }
    uint16_t signal(Cycle now) const { return now == end + 2 ? ended_mask : 0; }
    bool done(Cycle now) const { return now == end + 2; }
    bool quiet(Cycle now) const { return !active && !busy(now + 1) && under_way == 0; }

    // Simulates a cycle. Returns true if the offered instruction is accepted. For `adds` see matrix.h.
    bool step(Cycle now, const Instruction* offered, int32_t offered_index, const Slot& slot, unsigned adds,
              Schedule& schedule, Competition& asks) {
        const bool accepts = offered && (!active || (early && read && !behind && now >= settled));
        early = offered && !accepts && opcode == OP_VEC && comes_early(*offered);
        if (active) run(now, slot, adds, schedule, asks);
        if (slot.vec_under_way) under_way--;
        const bool was_active = active;
        if (slot.vec_end) {
            end = now, ended_mask = behind ? mask_before : mask;
            active = behind;
            behind = false;
        }
        if (accepts) {
            if (was_active) settled = now + Cycle(p->vec_settling) + 1;
            behind = active, mask_before = mask;
            load(now, *offered, offered_index, schedule);
        }
        return accepts;
    }

private:
    unsigned shift_ = 0, c_shift_ = 0;
    uint32_t mask_ = 0, c_mask_ = 0;

    unsigned bank(int64_t address) const { return (uint32_t(address) & mask_) >> shift_; }
    unsigned source_bank(int64_t address) const {
        return from_scratchpad ? bank(address) : (uint32_t(address) & c_mask_) >> c_shift_;
    }

    static bool comes_early(const Instruction& instruction) {
        if (instruction.opcode != OP_VEC) return false;
        const Vec& op = fields_of<Vec>(instruction);
        return !op.source && !op.add;
    }

    // Requests a bank of the scratchpad. Returns true if the read is granted.
    static bool grants(unsigned bank, Competition& asks) {
        const unsigned wanted = 1 + bank;
        asks.vec = wanted;
        return asks.b != wanted && asks.a != wanted;
    }

    void run(Cycle now, const Slot& slot, unsigned adds, Schedule& schedule, Competition& asks) {
        if (opcode == OP_KERNEL) kernel.step(now, adds, schedule, asks, stall_port, grants);
        if (opcode == OP_KERNEL || opcode == OP_MICROCODE) return;
        const bool loading = left != 0;
        const bool turn = valid && !loading && !element.ask_second;
        const bool asks_scratchpad =
            loading || (valid && (element.ask_second || (element.ask_source && from_scratchpad)));
        bool granted = false, ready = false;
        if (asks_scratchpad) {
            const unsigned operand = element.ask_second ? element.second : element.source;
            ready = grants(loading ? bank(parameter) : operand, asks);
            stall_port += !ready;
        }
        if (turn) {
            granted = true;
            if (element.ask_source && from_scratchpad) granted = ready;
            else if (element.ask_source) {
                granted = adds != 1u + element.source;
                stall_port += !granted;
            }
        }
        if (granted) grant(now, schedule);

        const bool held = hold(now);
        const bool steps = nest.active && !held && ahead.ready();
        if (opcode == OP_SOFTMAX || opcode == OP_NORMALISE) follow(slot, steps);
        const bool room = !valid || granted;
        if (loading) {
            if (ready) left--, parameter++;
        } else if (valid && element.ask_second && ready) element.ask_second = false;
        const bool taken = ahead.valid && room;
        if (room) valid = ahead.valid;
        if (taken) element = ahead.out;
        if (!steps && !ahead.valid) return;
        ahead.step(steps, steps ? nest_element() : Element{}, room);
        if (steps) nest.step();
    }

    bool hold(Cycle now) const {
        if (opcode == OP_SOFTMAX) {
            if (now < start + Cycle(p->mask_ready)) return true;
            return nest.first(G) && !nest.first(OB) && under_way >= rows;
        }
        return opcode == OP_NORMALISE && nest.first(OX) && nest.first(G) && !divider.ready(*p);
    }

    // Updates the counters that hold() reads.
    void follow(const Slot& slot, bool steps) {
        if (opcode == OP_NORMALISE) {
            divider.step(*p, slot.vec_row, steps && nest.first(OX) && nest.first(G));
            return;
        }
        if (!steps || !nest.first(G)) return;
        under_way++;
        if (nest.first(OB) && rows < p->under_way_most) rows++;
    }

    Element nest_element() const {
        Element result;
        const uint16_t y = uint16_t(nest.at(Y)), x = uint16_t(nest.at(X));
        const bool inside = opcode != OP_VEC || (y < 0x8000 && y < h && x < 0x8000 && x < w);
        const bool starts = nest.first(RY) && nest.first(RX);
        const bool moved = !same_column || (nest.first(OX) && (!same_row || nest.first(OY)));
        result.ask_second = add && moved && starts && nest.first(G);
        result.ask_source = inside;
        result.source = uint8_t(source_bank(nest.at(SRC)));
        result.second = uint8_t(bank(nest.at(B)));
        result.dst = uint8_t(bank(nest.at(DST)));
        result.last = nest.last(RY) && nest.last(RX);
        result.group_last = nest.last(G);
        result.end = nest.last_all();
        result.row = nest.first(OX) && nest.first(G);
        return result;
    }

    // Schedules the events that follow from a granted read of the element.
    void grant(Cycle now, Schedule& schedule) {
        if (opcode == OP_NORMALISE && element.row) schedule.at(now + Cycle(p->read_latency) + 1).vec_row = true;
        if (!element.last || !element.group_last) return;
        if (opcode == OP_SOFTMAX) {
            schedule.at(now + Cycle(p->softmax_write)).vec_write = uint8_t(1 + element.dst);
            schedule.at(now + Cycle(p->under_way_latency)).vec_under_way = true;
            if (element.end) schedule.at(now + Cycle(p->softmax_end)).vec_end = true;
            return;
        }
        if (!bytewise()) schedule.at(now + Cycle(p->vec_latency) + 1).vec_write = uint8_t(1 + element.dst);
        if (element.end) schedule.at(now + Cycle(p->vec_latency)).vec_end = read = true;
    }

    void load(Cycle now, const Instruction& instruction, int32_t position, Schedule& schedule) {
        opcode = instruction.opcode, index = position, start = now, active = true, read = false;
        mask = uint16_t(fields_of<Header>(instruction).signal);
        if (opcode == OP_KERNEL) {
            kernel.load(fields_of<Kernel>(instruction));
            return;
        }
        if (opcode == OP_MICROCODE) {
            const Microcode& code = fields_of<Microcode>(instruction);
            kernel.fill(code);
            schedule.at(now + 1 + Cycle(code.count)).vec_end = true;
            return;
        }
        add = false, from_scratchpad = true, h = w = 1;
        rows = left = 0;
        const int params = KINDS[opcode].parameters;
        if (params >= 0) left = PARAMETER_VECTOR_COUNT, parameter = uint32_t(instruction.fields[params]);
        if (opcode == OP_TABLE) load_table(fields_of<Table>(instruction));
        else if (opcode == OP_LOOKUP) load_table(fields_of<Lookup>(instruction));
        else from_scratchpad = fields_of<VectorInstruction>(instruction).source;
        take(nest, *p, opcode, instruction.fields);
        if (opcode == OP_VEC) {
            const Vec& op = fields_of<Vec>(instruction);
            add = op.add, h = uint16_t(op.h), w = uint16_t(op.w);
            same_row = op.b_oy == 0, same_column = op.b_ox == 0;
        }
        if (opcode == OP_NORMALISE) divider.start(nest.count[OB] * nest.count[OY]);
        nest.start();
    }

    bool bytewise() const { return opcode == OP_TABLE || opcode == OP_LOOKUP; }

    template <class Fields>
    void load_table(const Fields& op) {
        for (unsigned loop = 0; loop < LOOPS; loop++) nest.count[loop] = 1;
        for (unsigned value = 0; value < VALUES; value++) nest.set(value, 0, {0, 0, 0, 0, 0, 0});
        nest.count[OX] = op.vectors, nest.count[G] = p->n;
        nest.set(SRC, op.src, {0, 0, 1, 0, 0, 0});
    }
};

}  // namespace weft
