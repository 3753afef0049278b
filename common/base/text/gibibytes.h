#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace titan {

// "31.0 GiB"
inline std::string gibibytes(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1LL << 30));
}

// "3.1 MiB"
inline std::string mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1LL << 20));
}

}  // namespace titan
