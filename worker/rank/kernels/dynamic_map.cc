#include "worker/rank/kernels/dynamic_map.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace titan::kernels {
namespace {

float cell_begin(int32_t cell) {
  const uint32_t bits = static_cast<uint32_t>(DynamicMap::kFirstCell + cell) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Returns in ascending order 0, the middles of the steps of all decades, and 1.
std::vector<double> magnitudes(bool is_signed) {
  std::vector<double> steps = {0};
  for (int decade = 0; decade < 7; ++decade) {
    const int count = (is_signed ? 1 : 2) << decade;
    for (int i = 0; i < count; ++i) steps.push_back(std::pow(10.0, decade - 6) * (0.1 + 0.9 * (i + 0.5) / count));
  }
  steps.push_back(1);
  return steps;
}

DynamicMap make(bool is_signed) {
  const std::vector<double> steps = magnitudes(is_signed);
  const size_t last = steps.size() - 1;
  DynamicMap map;
  map.zero = is_signed ? 127 : 0;
  for (size_t k = 0; k <= last; ++k) {
    map.values[static_cast<size_t>(map.zero) + k] = static_cast<float>(steps[k]);
    if (is_signed && k < last) map.values[127 - k] = static_cast<float>(-steps[k]);
  }
  map.values[map.zero] = 0;
  for (size_t k = 0; k < 256; ++k) {
    map.bounds[k] =
        k < last ? static_cast<float>((steps[k] + steps[k + 1]) / 2) : std::numeric_limits<float>::infinity();
  }
  if (!is_signed) map.bounds[0] = 0;
  uint8_t step = 0;
  for (int32_t cell = 0; cell < DynamicMap::kCells + 4; ++cell) {
    while (cell < DynamicMap::kCells && cell > 0 && cell_begin(cell) > map.bounds[step]) ++step;
    map.cells[cell] = cell == 0 ? 0 : step;  // The first cell also covers all smaller magnitudes.
  }
  return map;
}

}  // namespace

const DynamicMap& dynamic_map(bool is_signed) {
  static const DynamicMap with_sign = make(true), without = make(false);
  return is_signed ? with_sign : without;
}

}  // namespace titan::kernels
