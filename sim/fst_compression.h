// Replacements for the functions of lz4.h and zlib.h that Verilator's FST writer calls, for machines without them.
//
// LZ4 blocks follow the format, with a search that considers only one earlier position. The zlib functions copy data
// without compression, and the writer then marks it as uncompressed, as the format allows.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

using Bytef = unsigned char;
using uLong = unsigned long;
using uLongf = unsigned long;
constexpr int Z_OK = 0;

static inline uLong compressBound(uLong size) { return size; }
static inline int compress2(Bytef*, uLongf* size, const Bytef*, uLong given, int) {
    *size = given;
    return Z_OK;
}

namespace lz4 {

constexpr int SHORTEST = 4, FARTHEST = 65535, HASH_BITS = 12;
// Limits of the format: the last match starts at least 12 bytes before the end, and the last 5 bytes are literals.
constexpr int LAST_START = 12, LAST_LITERALS = 5;

static inline uint32_t word(const uint8_t* at) {
    uint32_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

static inline uint8_t* length(uint8_t* to, int beyond) {
    for (; beyond >= 255; beyond -= 255) *to++ = 255;
    *to++ = uint8_t(beyond);
    return to;
}

// Writes `literals` literal bytes, then a match of `match` bytes at `distance`, unless `match` is 0.
static inline uint8_t* sequence(uint8_t* to, const uint8_t* from, int literals, int match, int distance) {
    const int more = match ? match - SHORTEST : 0;
    *to++ = uint8_t((literals < 15 ? literals : 15) << 4 | (more < 15 ? more : 15));
    if (literals >= 15) to = length(to, literals - 15);
    std::memcpy(to, from, size_t(literals));
    to += literals;
    if (!match) return to;
    *to++ = uint8_t(distance), *to++ = uint8_t(distance >> 8);
    return more >= 15 ? length(to, more - 15) : to;
}

}  // namespace lz4

static inline int LZ4_compressBound(int size) { return size + size / 255 + 16; }

// The caller's buffer has at least LZ4_compressBound(size) bytes, so its capacity is not checked.
static inline int LZ4_compress_default(const char* source, char* target, int size, int) {
    const auto* from = reinterpret_cast<const uint8_t*>(source);
    auto* const begin = reinterpret_cast<uint8_t*>(target);
    uint8_t* to = begin;
    int done = 0;
    if (size > lz4::LAST_START) {
        std::vector<int> places(size_t(1) << lz4::HASH_BITS, -1);
        for (int at = 0; at <= size - lz4::LAST_START;) {
            int& place = places[lz4::word(from + at) * 2654435761u >> (32 - lz4::HASH_BITS)];
            const int earlier = place;
            place = at;
            if (earlier < 0 || at - earlier > lz4::FARTHEST || lz4::word(from + earlier) != lz4::word(from + at)) {
                at++;
                continue;
            }
            int match = lz4::SHORTEST;
            while (at + match < size - lz4::LAST_LITERALS && from[earlier + match] == from[at + match]) match++;
            to = lz4::sequence(to, from + done, at - done, match, at - earlier);
            done = at += match;
        }
    }
    to = lz4::sequence(to, from + done, size - done, 0, 0);
    return int(to - begin);
}
