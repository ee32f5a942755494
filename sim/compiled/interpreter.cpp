// Programs, instruction by instruction, in the order of `weft.sim.golden.interpreter`.
#include <exception>

#include "matrix.h"
#include "movement.h"
#include "vector.h"

namespace weft {
namespace {

struct Units {
    Movement movement;
    Matrix matrix;
    Vector vector;
};

template <class Word>
Word decoded(const uint8_t* word, int opcode) {
    Word fields;
    int64_t* next = reinterpret_cast<int64_t*>(&fields);
    for (unsigned k = 0; k < KINDS[opcode].count; k++) next[k] = field_of(word, KINDS[opcode].fields[k]);
    return fields;
}

template <int N>
bool execute(State& s, Units& units, const uint8_t* word) {
    switch (word[0]) {
        case OP_LOAD: return units.movement.load(s, decoded<Load>(word, OP_LOAD));
        case OP_STORE: return units.movement.store(s, decoded<Store>(word, OP_STORE));
        case OP_MM: return units.matrix.mm<N>(s, decoded<Mm>(word, OP_MM));
        case OP_VEC: return units.vector.vec<N>(s, decoded<Vec>(word, OP_VEC));
        default: return false;
    }
}

bool ready(const State& s, uint64_t wait) {
    for (unsigned k = 0; k < SEMAPHORE_COUNT; k++)
        if (wait >> k & 1 && !s.available[k]) return false;
    return true;
}

// Whether no semaphore's count would become too large.
bool passes(const State& s, const Header& header) {
    for (unsigned k = 0; k < SEMAPHORE_COUNT; k++)
        if (header.signal >> k & 1 && s.available[k] - (header.wait >> k & 1) == SEMAPHORE_LARGEST) return false;
    return true;
}
void pass(State& s, const Header& header) {
    for (unsigned k = 0; k < SEMAPHORE_COUNT; k++) s.available[k] += (header.signal >> k & 1) - (header.wait >> k & 1);
}

template <int N>
int64_t run(State& s) {
    Units units;
    for (;;) {
        int64_t earliest = -1, chosen = -1, queue = -1;
        for (unsigned unit = 0; unit < UNITS; unit++) {
            if (s.next[unit] == s.order_count[unit]) continue;
            const int64_t index = s.order[unit][s.next[unit]];
            if (earliest < 0 || index < earliest) earliest = index;
            const uint64_t wait = uint64_t(field_of(s.words + index * WORD_LENGTH, KINDS[OP_END].fields[0]));
            if ((chosen < 0 || index < chosen) && ready(s, wait)) chosen = index, queue = unit;
        }
        if (chosen < 0) return earliest;
        const uint8_t* word = s.words + chosen * WORD_LENGTH;
        const auto header = decoded<Header>(word, OP_END);
        if (s.foreign[chosen] || !passes(s, header) || !execute<N>(s, units, word)) return chosen;
        pass(s, header);
        s.next[queue]++;
        s.executed++;
    }
}

int64_t run_any(State& s) {
    switch (s.n) {
        case 2: return run<2>(s);
        case 4: return run<4>(s);
        case 8: return run<8>(s);
        case 16: return run<16>(s);
        case 32: return run<32>(s);
        case 64: return run<64>(s);
        default: return run<128>(s);
    }
}

}  // namespace
}  // namespace weft

// Carries out what it can. Returns the instruction that the specification has to carry out next, or of which it says why
// that is impossible; -1 when all are done, -2 if there is not enough memory: no exception may leave a function that Python
// calls.
extern "C" __attribute__((visibility("default"))) int64_t weft_compiled_run(weft::State* state) {
    try {
        return weft::run_any(*state);
    } catch (const std::exception&) {
        return -2;
    }
}

