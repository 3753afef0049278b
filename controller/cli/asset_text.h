#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"

namespace titan::cli {

// "512 B", "3.1 MiB", "31.0 GiB".
inline std::string bytes_text(int64_t bytes) {
  if (bytes < 100 << 10) return absl::StrCat(bytes, " B");
  return bytes < int64_t{1} << 30 ? mebibytes(bytes) : gibibytes(bytes);
}

}  // namespace titan::cli
