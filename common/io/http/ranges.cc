#include "common/io/http/ranges.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace titan::http {

void Ranges::add(ByteRange range) {
  if (range.begin >= range.end) return;
  auto next = ends_.upper_bound(range.begin);
  if (next != ends_.begin() && std::prev(next)->second >= range.begin) --next;
  while (next != ends_.end() && next->first <= range.end) {
    range = {std::min(range.begin, next->first), std::max(range.end, next->second)};
    next = ends_.erase(next);
  }
  ends_[range.begin] = range.end;
}

std::vector<ByteRange> Ranges::missing(int64_t size) const {
  std::vector<ByteRange> out;
  int64_t at = 0;
  for (const auto& [begin, end] : ends_) {
    if (begin > at) out.push_back({at, std::min(begin, size)});
    at = std::max(at, end);
    if (at >= size) return out;
  }
  if (at < size) out.push_back({at, size});
  return out;
}

std::vector<ByteRange> Ranges::all() const {
  std::vector<ByteRange> out;
  for (const auto& [begin, end] : ends_) out.push_back({begin, end});
  return out;
}

int64_t Ranges::total() const {
  int64_t total = 0;
  for (const auto& [begin, end] : ends_) total += end - begin;
  return total;
}

std::vector<ByteRange> cut(const std::vector<ByteRange>& ranges, int64_t most) {
  std::vector<ByteRange> out;
  for (ByteRange range : ranges) {
    for (; range.size() > most; range.begin += most) out.push_back({range.begin, range.begin + most});
    out.push_back(range);
  }
  return out;
}

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
