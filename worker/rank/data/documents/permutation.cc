#include "worker/rank/data/documents/permutation.h"

#include <bit>

namespace titan::data {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

// Applies the finalizer of SplitMix64 (Steele, Lea, Flood, 2014).
uint64_t scramble(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

Permutation::Permutation(int64_t count, int64_t seed, int64_t pass) : count_(static_cast<uint64_t>(count)) {
  if (count_ > 4) half_bits_ = (std::bit_width(count_ - 1) + 1) / 2;
  uint64_t key = scramble(scramble(static_cast<uint64_t>(seed) + kGolden) + static_cast<uint64_t>(pass));
  for (uint64_t& round : keys_) round = scramble(key += kGolden);
}

uint64_t Permutation::permute(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (const uint64_t key : keys_) {
    const uint64_t mixed = left ^ (scramble(right ^ key) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

// The domain is at most four times `count_`, so a walk takes at most four steps on average.
int64_t Permutation::operator()(int64_t index) const {
  auto value = static_cast<uint64_t>(index);
  do {
    value = permute(value);
  } while (value >= count_);
  return static_cast<int64_t>(value);
}

}  // namespace titan::data
