// Decodes programs to integers, by the positions of fields in weft.hdl.isa.
#pragma once

#include <cstring>

#include "common.h"

namespace weft {

struct Program {
    std::vector<Instruction> instructions;  // up to END, included
    std::vector<int64_t> values;
    int64_t faulty = -1;  // index of the first word that is invalid or outside memory
};

inline int64_t field_of(const uint8_t* word, const Field& field) {
    unsigned __int128 some;
    std::memcpy(&some, word + field.position / 8, sizeof some);
    const uint64_t value = uint64_t(some >> field.position % 8) & ((uint64_t(1) << field.width) - 1);
    const bool negative = field.is_signed && value >> (field.width - 1);
    return int64_t(value) - (negative ? int64_t(1) << field.width : 0);
}

// `features` is a mask of the configuration's features, see `Kind`.
inline Program read_program(const uint8_t* memory, uint64_t size, uint64_t address, int64_t features) {
    Program program;
    std::vector<size_t> places;
    std::vector<int> opcodes;
    for (;; address += WORD_LENGTH) {
        uint8_t word[WORD_LENGTH + 16]{};
        const bool inside = address + WORD_LENGTH <= size;
        if (inside) std::memcpy(word, memory + address, WORD_LENGTH);
        const bool known = inside && word[0] < sizeof KINDS / sizeof *KINDS && !(KINDS[word[0]].features & ~features);
        const Kind kind = known ? KINDS[word[0]] : Kind{nullptr, 0, -1, 0, {-1, -1}};
        places.push_back(program.values.size());
        opcodes.push_back(word[0]);
        for (unsigned k = 0; k < kind.count; k++) {
            program.values.push_back(field_of(word, kind.fields[k]));
            if (program.values.back() < kind.fields[k].least) program.faulty = int64_t(opcodes.size()) - 1;
        }
        if (!known) program.faulty = int64_t(opcodes.size()) - 1;
        if (program.faulty >= 0 || word[0] == OP_END) break;
    }
    for (size_t k = 0; k < opcodes.size(); k++)
        program.instructions.push_back({opcodes[k], program.values.data() + places[k], int32_t(k), {}});
    return program;
}

}  // namespace weft
