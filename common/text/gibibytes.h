#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace titan {

// "31.0 GiB"
inline std::string gibibytes(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1LL << 30));
}

}  // namespace titan
