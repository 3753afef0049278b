#include "common/io/http/content_range.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace titan::http {

std::optional<ContentRange> parse_content_range(const std::string& text) {
  if (!absl::StartsWithIgnoreCase(text, "bytes ")) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(text.substr(6), absl::ByAnyChar("-/"));
  ContentRange out;
  int64_t last = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &out.range.begin) || !absl::SimpleAtoi(parts[1], &last) ||
      !absl::SimpleAtoi(parts[2], &out.size))
    return std::nullopt;
  if (out.range.begin < 0 || last < out.range.begin || last >= out.size) return std::nullopt;
  out.range.end = last + 1;
  return out;
}

}  // namespace titan::http
