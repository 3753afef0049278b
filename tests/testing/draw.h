#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>

namespace titan::testing {

// Returns one of the given values per call; a seed gives the same choices on every machine.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  int64_t operator()(std::initializer_list<int64_t> values) { return *(values.begin() + random_() % values.size()); }

 private:
  std::mt19937 random_;
};

}  // namespace titan::testing
