#include "worker/rank/checkpoint/formats/hugging_face/hf_dequantize.h"

#include <c10/util/Float8_e4m3fn.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace titan::checkpoint {
namespace {

constexpr int64_t kBytesOfGroup = 16;

std::array<float, 256> float8_values() {
  std::array<float, 256> values;
  for (int code = 0; code < 256; ++code) {
    values[static_cast<size_t>(code)] = c10::detail::fp8e4m3fn_to_fp32_value(static_cast<uint8_t>(code));
  }
  return values;
}

// The two numbers of a byte: of its lower four bits, then of the others.
struct Pair {
  float low, high;
};
std::array<Pair, 256> mxfp4_values() {
  constexpr float kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const auto value = [&](unsigned code) { return code & 8 ? -kMagnitudes[code & 7] : kMagnitudes[code]; };
  std::array<Pair, 256> values;
  for (unsigned byte = 0; byte < 256; ++byte) values[byte] = {value(byte & 15), value(byte >> 4)};
  return values;
}

bool has_nan(const uint8_t* bytes, int64_t count) {
  uint8_t found = 0;
  for (int64_t i = 0; i < count; ++i) found |= static_cast<uint8_t>((bytes[i] & 0x7f) == 0x7f);
  return found != 0;
}

}  // namespace

bool dequantize_float8(const Float8Box& box, float* out) {
  static const std::array<float, 256> values = float8_values();
  if (has_nan(box.bytes, box.rows * box.columns)) return false;
  for (int64_t row = 0; row < box.rows; ++row) {
    const uint8_t* bytes = box.bytes + row * box.columns;
    float* numbers = out + row * box.columns;
    const float* scales = box.scales + (box.first_row + row) / box.block_rows * box.scale_columns;
    for (int64_t begin = 0; begin < box.columns;) {
      const int64_t block = (box.first_column + begin) / box.block_columns;
      const int64_t end = std::min(box.columns, (block + 1) * box.block_columns - box.first_column);
      const float scale = scales[block];
      for (int64_t column = begin; column < end; ++column) numbers[column] = values[bytes[column]] * scale;
      begin = end;
    }
  }
  return true;
}

void dequantize_mxfp4(const uint8_t* bytes, const uint8_t* exponents, int64_t groups, float* out) {
  static const std::array<Pair, 256> values = mxfp4_values();
  for (int64_t group = 0; group < groups; ++group) {
    const float scale = std::ldexp(1.0F, exponents[group] - 127);
    for (int64_t i = 0; i < kBytesOfGroup; ++i) {
      const Pair& pair = values[bytes[group * kBytesOfGroup + i]];
      *out++ = pair.low * scale;
      *out++ = pair.high * scale;
    }
  }
}

}  // namespace titan::checkpoint
