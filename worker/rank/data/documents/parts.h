#pragma once

#include <cstdint>

namespace titan::data {

// How many parts of `part` each make up `size`, the last of which may be smaller.
constexpr int64_t parts_of(int64_t size, int64_t part) { return size / part + (size % part > 0 ? 1 : 0); }

}  // namespace titan::data
