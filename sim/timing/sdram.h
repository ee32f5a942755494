// The boards' SDRAM controller (boards/sdram/controller.py, boards/sdram/schedule.py) after initialisation: the waits
// of a memory port's commands and words, cycle by cycle. The chip has a fixed latency.
#pragma once

#include <algorithm>

#include "common.h"

namespace weft {

// A command of a memory port (boards/bus/port.py).
struct PortCommand {
    bool write = false;
    uint32_t address = 0, beats = 0;
};

struct SdramController {
    struct Segment {
        bool write = false, last = false;
        uint32_t unit = 0, bank = 0, row = 0, more = 0;
    };
    enum State { RUN, CLOSE, REFRESH, REOPEN, WAIT };
    static constexpr unsigned BANK_COUNT = 4;

    void configure(const SdramParameters& parameters, int64_t bus_bytes) {
        p = parameters;
        align = log2_of(uint64_t(bus_bytes)), inside = unsigned(p.column_bits) + 1 - align;
        page = std::max(log2_of(uint64_t(p.page_bytes)) - align, inside);
        units = uint32_t(bus_bytes / p.unit_bytes), halves_of_word = uint32_t(bus_bytes / 2);
        free = unsigned(p.read_words), interval = p.refresh - 1;
        ras = ones(std::max(p.ras, p.rc - p.rp) - 1), rp = ones(p.rp - 1), rcd_ones = ones(p.rcd - 2);
        rrd_ones = ones(p.rrd - 1), wr = ones(p.wr), turn_ones = ones(p.cas_latency + 2);
        arrival = uint64_t(3) << (p.read_latency - 1);
        due = true;
        rest(Cycle(p.phase));
    }

    // Outputs of a cycle, which depend only on registers.
    bool command_ready() const { return !active; }
    bool write_ready() const { return !have; }
    bool read_valid() const { return waiting != 0; }
    bool idle() const {
        return !active && !next_valid && !now_valid && !have && !waiting && !coming && !complete && !written;
    }

    // Simulates a cycle, with a command, a word to write and a word read, if their handshakes succeed.
    void step(const PortCommand* command, bool word, bool read_taken) {
        const bool final = now.more == 0, first = (now.unit & (units - 1)) == 0;
        const bool ready = now.write ? have && !(turn & 1) : room || !first;
        const bool issue = run && now_valid && !second && ready, read = issue && !now.write, write = issue && now.write;
        const bool segment_ready = !next_valid;
        rows(issue);
        countdowns(issue, read);
        gather(read, read && first, read_taken);
        if (write) have = left-- != 0;
        if (word) left = units - 1, have = true;
        second = issue, written = write && final && now.last;
        if (issue) {
            now.unit++, now.more--;
            if (final) now_valid = false;
        }
        maintain();
        split(command, segment_ready);
    }

    // Simulates cycles without commands.
    void rest(Cycle cycles) {
        // The state repeats with every refresh: skip all but the last two to three.
        if (cycles > 4 * Cycle(p.refresh)) cycles = cycles % Cycle(p.refresh) + 2 * Cycle(p.refresh);
        while (cycles) {
            const bool still = state == RUN && !due && !(busy[0] | busy[1] | busy[2] | busy[3] | rrd | rcd | turn) &&
                               !second && room && !looked && !opened && interval > 1;
            const Cycle leap = still ? std::min(cycles, Cycle(interval - 1)) : 0;
            if (leap) interval -= int64_t(leap);
            else step(nullptr, false, false);
            cycles -= leap ? leap : 1;
        }
    }

    bool written = false;

private:
    SdramParameters p{};
    unsigned align = 4, inside = 6, page = 8;
    uint32_t units = 4, halves_of_word = 8;
    uint64_t ras = 0, rp = 0, rcd_ones = 0, rrd_ones = 0, wr = 0, turn_ones = 0, arrival = 0;
    // Command that is split at the ends of rows.
    bool active = false, active_write = false;
    uint32_t word_ = 0, more = 0;
    // Segments and rows.
    bool run = true, now_valid = false, next_valid = false, looked = false, hit = false, other = false, opened = false;
    bool second = false, due = false, activate = false, precharge = false, reopen = false, close_all = false;
    Segment now, next;
    bool open[BANK_COUNT]{};
    uint32_t row[BANK_COUNT]{};
    uint64_t busy[BANK_COUNT]{}, rrd = 0, rcd = 0, turn = 0;  // unary countdowns: bit 0 is 1 while not over
    State state = RUN;
    int64_t timer = 0, interval = 0;
    // Words to write, and words that were read.
    bool have = false, room = true, complete = false;
    uint32_t left = 0, halves = 0;
    uint64_t coming = 0;
    unsigned waiting = 0, free = 16;

    static uint64_t ones(int64_t count) { return (uint64_t(1) << std::max<int64_t>(count, 0)) - 1; }

    // Opens the row of the next segment.
    void rows(bool issue) {
        const bool same_bank = now_valid && now.bank == next.bank;
        const bool wanted = run && looked && !hit && !opened && !same_bank && !(busy[next.bank] & 1) && !issue;
        precharge = wanted && other, activate = wanted && !other && !(rrd & 1);
        const bool go = run && looked && (opened ? !(rcd & 1) : hit) && !now_valid;
        close_all = state == CLOSE && !timer && !((busy[0] | busy[1] | busy[2] | busy[3]) & 1);
        reopen = state == REOPEN && !timer && now_valid;
        held_ = next.bank;
        const bool opens = open[next.bank];
        looked = next_valid && run && !precharge, hit = opens && row[next.bank] == next.row, other = opens;
        opened = (opened && run) || activate;
        goes_ = go;
    }

    void countdowns(bool issue, bool read) {
        for (auto& bank : busy) bank >>= 1;
        if (issue) busy[now.bank] |= now.write ? wr : 1;
        if (activate) busy[held_] |= ras, open[held_] = true, row[held_] = next.row;
        if (reopen) busy[now.bank] |= ras, open[now.bank] = true;
        if (precharge) busy[held_] |= rp, open[held_] = false;
        if (close_all)
            for (unsigned bank = 0; bank < BANK_COUNT; bank++) busy[bank] |= rp, open[bank] = false;
        rrd = rrd >> 1 | (activate || reopen ? rrd_ones : 0);
        rcd = rcd >> 1 | (activate ? rcd_ones : 0);
        turn = turn >> 1 | (read ? turn_ones : 0);
        if (goes_) {
            now = next, now_valid = true;
            next_valid = looked = opened = false;
        }
    }

    void gather(bool read, bool reserve, bool taken) {
        const bool arrives = coming & arrival;
        waiting += unsigned(complete) - unsigned(taken);
        complete = arrives && halves == halves_of_word - 1;
        if (arrives) halves = halves == halves_of_word - 1 ? 0 : halves + 1;
        coming = (coming << 1 | uint64_t(read)) & ((uint64_t(1) << (p.read_latency + 1)) - 1);
        room = free != 0;
        free += unsigned(taken) - unsigned(reserve);
    }

    // Simulates refreshes.
    void maintain() {
        const bool elapsed = timer == 0, was_due = due;
        if (!elapsed) timer--;
        if (interval-- == 0) interval = p.refresh - 1, due = true;
        if (state == RUN) {
            if (was_due) state = CLOSE, run = false;
        } else if (state == CLOSE) {
            if (close_all) timer = p.rp - 1, state = REFRESH;
        } else if (elapsed && state == REFRESH) timer = p.rfc - 1, due = false, state = REOPEN;
        else if (elapsed && state == REOPEN) {
            if (reopen) timer = p.rcd - 1;
            state = WAIT;
        } else if (elapsed) state = RUN, run = true;
    }

    // Takes the next segment from the current command, up to the end of a row.
    void split(const PortCommand* command, bool segment_ready) {
        if (!active) {
            active = command != nullptr;
            if (active) active_write = command->write, word_ = command->address >> align, more = command->beats - 1;
            return;
        }
        if (!segment_ready) return;
        const uint32_t mask = (1u << inside) - 1, room_ = ~word_ & mask;
        const bool last = more <= room_;
        const uint32_t words = last ? more : room_;
        next.write = active_write, next.last = last, next.unit = (word_ & mask) * units;
        next.bank = word_ >> inside & (BANK_COUNT - 1);
        next.row = (word_ >> (inside + 2)) & ((1u << p.row_bits) - 1);
        next.more = words * units + units - 1;
        next_valid = true;
        active = !last;
        const uint32_t in_page = (1u << page) - 1;
        word_ = (word_ & ~in_page) | (((word_ | mask) + 1) & in_page);
        more -= room_ + 1;
    }

    uint32_t held_ = 0;
    bool goes_ = false;
};

}  // namespace weft
