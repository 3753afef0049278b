#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace titan::random {

// Counter-based random numbers: element i of a stream depends only on (key, i), so any slice can be drawn anywhere, in
// any order, by any number of threads, with the same bits. Uses no LibTorch. stream_key() returns the key of a stream.
uint64_t stream_key(uint64_t seed, std::string_view name);

// A normal distribution of mean 0 cut to [lower, upper], symmetric or not. Without a cut the bounds are infinite.
struct TruncatedNormal {
  TruncatedNormal(double std, double lower, double upper);
  float std, lower, upper;
  float below;   // Probability mass under `lower`.
  float above;   // Probability mass over `upper`.
  float inside;  // Probability mass in between.
};

// The stream is drawn in chunks of this many elements; chunk boundaries are multiples of it.
inline constexpr int64_t kChunk = 64;

// Writes the four words of each Philox-4x32-10 block with counters [first_counter, first_counter + kPhiloxBlocks).
inline constexpr int kPhiloxBlocks = kChunk / 4;
using PhiloxWords = std::array<std::array<uint32_t, kPhiloxBlocks>, 4>;
void philox(uint64_t key, uint64_t first_counter, PhiloxWords& word);

// Writes elements [chunk * kChunk, (chunk + 1) * kChunk) of the stream to out [kChunk], in fp32.
void draw_chunk(uint64_t key, int64_t chunk, const TruncatedNormal& distribution, float* out);
// The same, uniform between -bound and bound.
void draw_uniform_chunk(uint64_t key, int64_t chunk, float bound, float* out);

}  // namespace titan::random
