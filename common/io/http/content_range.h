#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/io/http/ranges.h"

namespace titan::http {

struct ContentRange {
  Range range;
  int64_t size = 0;  // Of the whole file.
};

// "bytes 0-99/1000". Nothing for any other text.
std::optional<ContentRange> parse_content_range(const std::string& text);

}  // namespace titan::http
