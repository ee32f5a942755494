// Executes programs instruction by instruction, in the order of `weft.sim.golden.interpreter`.
#include <exception>
#include <memory>
#include <type_traits>

#include "kernel.h"
#include "matrix.h"
#include "movement.h"
#include "softmax.h"
#include "vector.h"

namespace weft {
namespace {

struct Units {
    Movement movement;
    Matrix matrix;
    Vector vector;
    SoftmaxUnit softmax;
};

template <class Word>
Word decoded(const uint8_t* word, int opcode) {
    Word fields;
    int64_t* next = reinterpret_cast<int64_t*>(&fields);
    for (unsigned k = 0; k < KINDS[opcode].count; k++) next[k] = field_of(word, KINDS[opcode].fields[k]);
    return fields;
}

std::vector<MicroOp> micro_ops(const uint64_t* words, uint64_t count) {
    std::vector<MicroOp> ops(count);
    for (uint64_t op = 0; op < count; op++) {
        uint8_t word[24]{};  // `field_of` reads 16 bytes from any byte of the word
        std::memcpy(word, words + op, sizeof *words);
        int64_t* next = reinterpret_cast<int64_t*>(&ops[op]);
        for (const Field& field : FIELDS_MICRO) *next++ = field_of(word, field);
    }
    return ops;
}

template <int N>
bool execute(State& s, Units& units, const uint8_t* word) {
    switch (word[0]) {
        case OP_LOAD: return units.movement.load(s, decoded<Load>(word, OP_LOAD));
        case OP_STORE: return units.movement.store(s, decoded<Store>(word, OP_STORE));
        case OP_MM: return units.matrix.mm<N>(s, decoded<Mm>(word, OP_MM));
        case OP_VEC: return units.vector.vec<N>(s, decoded<Vec>(word, OP_VEC));
        case OP_SOFTMAX: return units.softmax.softmax<N>(s, decoded<Softmax>(word, OP_SOFTMAX));
        case OP_NORMALISE: return units.softmax.normalise<N>(s, decoded<Normalise>(word, OP_NORMALISE));
        default: return false;
    }
}

bool ready(const State& s, uint64_t wait) {
    for (unsigned k = 0; k < SEMAPHORE_COUNT; k++)
        if (wait >> k & 1 && !s.available[k]) return false;
    return true;
}

// Returns true if no semaphore would exceed its largest count.
bool fits_semaphores(const State& s, const Header& header) {
    for (unsigned k = 0; k < SEMAPHORE_COUNT; k++)
        if (header.signal >> k & 1 && s.available[k] - (header.wait >> k & 1) == SEMAPHORE_LARGEST) return false;
    return true;
}
void update_semaphores(State& s, const Header& header) {
    for (unsigned k = 0; k < SEMAPHORE_COUNT; k++) s.available[k] += (header.signal >> k & 1) - (header.wait >> k & 1);
}

template <int N>
int64_t run(State& s) {
    Units units;
    for (;;) {
        int64_t earliest = -1, chosen = -1, queue = -1;
        for (unsigned unit = 0; unit < UNITS; unit++) {
            if (s.next[unit] == s.order_count[unit]) continue;
            const int64_t place = s.order[unit][s.next[unit]];
            if (earliest < 0 || place < earliest) earliest = place;
            const uint8_t* word = s.words + int64_t(s.indices[place]) * WORD_LENGTH;
            const uint64_t wait = uint64_t(field_of(word, KINDS[OP_END].fields[0]));
            if ((chosen < 0 || place < chosen) && ready(s, wait)) chosen = place, queue = unit;
        }
        if (chosen < 0) return earliest;
        const int64_t index = s.indices[chosen];
        const uint8_t* word = s.words + index * WORD_LENGTH;
        s.bases = s.registers + s.frames[chosen] * REGISTER_COUNT;
        const auto header = decoded<Header>(word, OP_END);
        if (s.foreign[index] || !fits_semaphores(s, header) || !execute<N>(s, units, word)) return chosen;
        update_semaphores(s, header);
        s.next[queue]++;
        s.executed++;
    }
}

// Calls ``function(std::integral_constant<int, N>())`` for the N of the configuration.
template <class Function>
int64_t with_n(const State& s, Function function) {
    switch (s.n) {
        case 2: return function(std::integral_constant<int, 2>());
        case 4: return function(std::integral_constant<int, 4>());
        case 8: return function(std::integral_constant<int, 8>());
        case 16: return function(std::integral_constant<int, 16>());
        case 32: return function(std::integral_constant<int, 32>());
        case 64: return function(std::integral_constant<int, 64>());
        default: return function(std::integral_constant<int, 128>());
    }
}

}  // namespace
}  // namespace weft

#define EXPORT extern "C" __attribute__((visibility("default")))

// Both functions return -2 if memory runs out, because exceptions must not reach Python.

// Executes instructions. Returns the place of an instruction that the golden interpreter must execute next (or whose
// error it must raise), or -1 at the end of the program.
EXPORT int64_t weft_compiled_run(weft::State* state) {
    try {
        return weft::with_n(*state, [&](auto n) { return weft::run<n.value>(*state); });
    } catch (const std::exception&) {
        return -2;
    }
}

// Executes a KERNEL with `count` checked words of micro-operations. Returns 0, or 1 if the golden interpreter must
// raise its error.
EXPORT int64_t weft_compiled_kernel(weft::State* state, uint64_t index, const uint64_t* words, uint64_t count) {
    try {
        const auto word = state->words + index * weft::WORD_LENGTH;
        const auto fields = weft::decoded<weft::Kernel>(word, weft::OP_KERNEL);
        const auto ops = weft::micro_ops(words, count);
        const auto engine = std::make_unique<weft::KernelEngine>();
        return weft::with_n(*state, [&](auto n) {
            return int64_t(!engine->kernel<n.value>(*state, fields, ops.data()));
        });
    } catch (const std::exception&) {
        return -2;
    }
}
