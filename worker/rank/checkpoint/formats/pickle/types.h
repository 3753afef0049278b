#pragma once

#include <cstdint>
#include <string_view>

namespace titan::pickle {

// A type of numbers, under torch's names.
struct Type {
  std::string_view name;     // torch.NAME
  std::string_view storage;  // torch.STORAGE
  int64_t bytes;             // Per element.
};

inline constexpr Type kTypes[] = {
    {"float64", "DoubleStorage", 8},    {"float32", "FloatStorage", 4}, {"float16", "HalfStorage", 2},
    {"bfloat16", "BFloat16Storage", 2}, {"int64", "LongStorage", 8},    {"int32", "IntStorage", 4},
    {"int16", "ShortStorage", 2},       {"int8", "CharStorage", 1},     {"uint8", "ByteStorage", 1},
    {"bool", "BoolStorage", 1},
};

}  // namespace titan::pickle
