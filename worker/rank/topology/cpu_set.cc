#include "worker/rank/topology/cpu_set.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace titan::topology {
namespace {

constexpr int kMostCpus = 1 << 16;

}  // namespace

std::optional<CpuSet> parse_cpu_list(std::string_view text) {
  CpuSet cpus;
  const absl::string_view list = absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
  if (list.empty()) return cpus;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    if (!absl::SimpleAtoi(ends.first, &first)) return std::nullopt;
    int last = first;
    if (part.size() > ends.first.size() && !absl::SimpleAtoi(ends.second, &last)) return std::nullopt;
    if (first < 0 || last < first || last >= kMostCpus) return std::nullopt;
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

std::string to_text(const CpuSet& cpus) {
  std::string text;
  for (auto begin = cpus.begin(); begin != cpus.end();) {
    auto last = begin;
    while (std::next(last) != cpus.end() && *std::next(last) == *last + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", *begin);
    if (last != begin) absl::StrAppend(&text, "-", *last);
    begin = std::next(last);
  }
  return text;
}

CpuSet intersection(const CpuSet& one, const CpuSet& other) {
  CpuSet both;
  std::set_intersection(one.begin(), one.end(), other.begin(), other.end(), std::inserter(both, both.end()));
  return both;
}

bool contains(const CpuSet& whole, const CpuSet& part) {
  return std::includes(whole.begin(), whole.end(), part.begin(), part.end());
}

}  // namespace titan::topology
