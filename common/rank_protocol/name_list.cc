#include "common/rank_protocol/name_list.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"

namespace titan::rank_protocol {
namespace {

constexpr size_t kMaxDigits = 18;  // The most that always fit into an int64.
constexpr size_t kMaxNameLength = 63;

struct Split {
  absl::string_view prefix, digits;
};

Split split(absl::string_view name) {
  size_t at = name.size();
  while (at > 0 && name.size() - at < kMaxDigits && absl::ascii_isdigit(static_cast<unsigned char>(name[at - 1]))) --at;
  return {name.substr(0, at), name.substr(at)};
}

// `digits` contains only digits.
int64_t number_of(absl::string_view digits) {
  int64_t number = 0;
  (void)absl::SimpleAtoi(digits, &number);
  return number;
}

std::string digits_of(int64_t number, size_t width) { return absl::StrFormat("%0*d", static_cast<int>(width), number); }

// Returns the number of names, starting at `at`, that count up from `first` without a gap.
size_t run_from(const std::vector<std::string>& names, size_t at, const Split& first) {
  size_t length = 1;
  while (at + length < names.size()) {
    const Split next = split(names[at + length]);
    const int64_t number = number_of(first.digits) + static_cast<int64_t>(length);
    if (next.prefix != first.prefix || next.digits != digits_of(number, first.digits.size())) break;
    ++length;
  }
  return length;
}

absl::Status wrong(absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat("list of names: ", what)); }

absl::Status add(absl::string_view prefix, absl::string_view end, size_t most, std::vector<std::string>& names) {
  const size_t length = prefix.size() + end.size();
  if (length == 0) return wrong("an empty name");
  if (length > kMaxNameLength) return wrong(absl::StrCat("a name has ", length, " characters, more than 63"));
  if (names.size() == most) return wrong(absl::StrCat("more than ", most, " names"));
  names.push_back(absl::StrCat(prefix, end));
  return absl::OkStatus();
}

// Adds the names of "007" or "007-019".
absl::Status add_run(absl::string_view prefix, absl::string_view run, size_t most, std::vector<std::string>& names) {
  const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(run, absl::MaxSplits('-', 1));
  const bool is_range = absl::StrContains(run, '-');
  for (const absl::string_view digits : {ends.first, is_range ? ends.second : ends.first}) {
    if (digits.empty() || split(digits).digits.size() != digits.size())
      return wrong(absl::StrCat("not a range: ", run));
  }
  const int64_t first = number_of(ends.first), last = is_range ? number_of(ends.second) : first;
  if (last < first) return wrong(absl::StrCat("a descending range: ", run));
  for (int64_t number = first; number <= last; ++number) {
    TITAN_RETURN_IF_ERROR(add(prefix, digits_of(number, ends.first.size()), most, names));
  }
  return absl::OkStatus();
}

}  // namespace

std::string fold_names(const std::vector<std::string>& names) {
  std::vector<std::string> folded;
  for (size_t at = 0; at < names.size();) {
    const Split first = split(names[at]);
    std::vector<std::string> runs;  // Runs of consecutive names with the same prefix.
    size_t end = at;
    while (end < names.size()) {
      const Split from = split(names[end]);
      if (from.digits.empty() || from.prefix != first.prefix) break;
      const size_t length = run_from(names, end, from);
      runs.emplace_back(from.digits);
      if (length > 1) absl::StrAppend(&runs.back(), "-", split(names[end + length - 1]).digits);
      end += length;
    }
    if (end <= at + 1) {
      folded.push_back(names[at++]);
      continue;
    }
    folded.push_back(absl::StrCat(first.prefix, "[", absl::StrJoin(runs, ","), "]"));
    at = end;
  }
  return absl::StrJoin(folded, ",");
}

absl::StatusOr<std::vector<std::string>> unfold_names(absl::string_view text, size_t most) {
  std::vector<std::string> names;
  for (;;) {
    const size_t stop = std::min(text.find_first_of(",[]"), text.size());
    const absl::string_view name = text.substr(0, stop);
    text.remove_prefix(stop);
    if (!absl::ConsumePrefix(&text, "[")) {
      TITAN_RETURN_IF_ERROR(add(name, "", most, names));
    } else {
      const size_t close = text.find(']');
      if (close == absl::string_view::npos) return wrong("a '[' without its ']'");
      for (const absl::string_view run : absl::StrSplit(text.substr(0, close), ',')) {
        TITAN_RETURN_IF_ERROR(add_run(name, run, most, names));
      }
      text.remove_prefix(close + 1);
    }
    if (text.empty()) return names;
    if (!absl::ConsumePrefix(&text, ",")) return wrong("',' is missing between names");
  }
}

}  // namespace titan::rank_protocol
