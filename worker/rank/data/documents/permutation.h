#pragma once

#include <array>
#include <cstdint>

namespace titan::data {

// A permutation of the numbers below `count`, chosen by a seed and a pass, that needs no memory: a Feistel network over
// the next power of four, walked along its cycle until it is below `count` (Black and Rogaway, "Ciphers with arbitrary
// finite domains", 2002). It is not a cipher: the seed reveals the order.
class Permutation {
 public:
  Permutation(int64_t count, int64_t seed, int64_t pass);

  // Returns the old index of the item at `index` (0 to count - 1) of the new order.
  int64_t operator()(int64_t index) const;
  int64_t count() const { return static_cast<int64_t>(count_); }

 private:
  uint64_t permute(uint64_t value) const;

  uint64_t count_;
  int half_bits_ = 1;
  std::array<uint64_t, 8> keys_;  // One per round.
};

}  // namespace titan::data
