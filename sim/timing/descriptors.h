// The walker of lists of programs (hdl/control/descriptors.py), cycle by cycle.
#pragma once

#include "common.h"
#include "memory.h"

namespace weft {

// A program of a list: inputs from Python, and the contents of its record.
struct Listed {
    uint32_t entry;
    uint32_t bases[8];
    uint32_t pad;
    uint64_t cycles, waited;
};

struct Walker {
    enum State { REST, ASK, TAKE, LOOK, LAUNCH, RUN, SETTLE, RECORD, SEND, CONFIRM, ADVANCE };

    State state = REST;
    uint32_t address = 0;  // of the descriptor
    unsigned coming = 0, left = 0;  // beats of a descriptor, of its record
    Listed* program = nullptr;
    Listed* end = nullptr;

    void start(const Parameters& p, uint32_t at, Listed* first, uint64_t count) {
        const auto bus = uint32_t(p.bus_bytes);
        address = at, program = first, end = first + count;
        pitch_ = uint32_t(p.list_pitch);
        reads_ = (uint32_t(p.descriptor_read) + bus - 1) / bus;
        writes_ = std::max(uint32_t(p.descriptor_record) / bus, 1u);
        record_at_ = uint32_t(p.descriptor_read) / bus * bus;
        bytes_ = std::min(uint32_t(p.descriptor_record), bus);
        state = ASK;
    }
    bool between() const { return state != RUN; }
    bool asks() const { return state == ASK; }
    bool takes() const { return state == TAKE; }
    bool records() const { return state == RECORD; }
    bool sends() const { return state == SEND; }
    Burst read() const { return {address, uint16_t(reads_), FETCHES}; }
    Burst write() const { return {address + record_at_, uint16_t(writes_), 0}; }
    WriteBeat beat() const { return {left == 1, uint16_t(bytes_)}; }

    // Ends a cycle. `idle`: the program has ended; the other arguments are handshakes on the bus.
    void step(bool idle, bool beat, bool read_ready, bool write_ready, bool send_ready, bool confirmed) {
        switch (state) {
        case REST: break;
        case ASK: if (read_ready) state = TAKE, coming = reads_; break;
        case TAKE: if (beat && --coming == 0) state = LOOK; break;
        case LOOK: state = LAUNCH; break;
        case LAUNCH: state = RUN; break;
        case RUN: if (idle) state = SETTLE; break;
        case SETTLE: state = RECORD; break;
        case RECORD: if (write_ready) state = SEND, left = writes_; break;
        case SEND: if (send_ready && --left == 0) state = CONFIRM; break;
        case CONFIRM: if (confirmed) state = ADVANCE; break;
        case ADVANCE:
            address += pitch_;
            state = ++program == end ? REST : ASK;
            break;
        }
    }

private:
    uint32_t pitch_ = 64, reads_ = 3, writes_ = 1, record_at_ = 48, bytes_ = 16;
};

}  // namespace weft
