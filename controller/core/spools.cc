// Ranks repeat themselves: a full disk causes a warning from each rank at each logged step, and ten thousand ranks lose
// the same peer. The first few messages of a kind become events, then only those that show that it continues.

#include "controller/core/spools.h"

#include "absl/strings/str_cat.h"
#include "common/base/text/message_text.h"

namespace titan::core {
namespace {

constexpr int64_t kMaxReportedEach = 3;    // Per kind. After these, the 10th, the 100th, ...
constexpr size_t kMaxReportedDamage = 16;  // Per rank.
constexpr size_t kMaxKinds = 200;          // Per attempt. Beyond them, all messages with one reason are one kind.

bool is_power_of_ten(int64_t number) {
  while (number >= 10 && number % 10 == 0) number /= 10;
  return number == 1;
}

}  // namespace

bool Spools::should_report(const AttemptKey& attempt, const std::string& reason, std::string& message) {
  std::map<std::string, int64_t>& counts = warnings_[attempt];
  std::string kind = absl::StrCat(reason, " ", text::shape_of(message));
  if (counts.size() >= kMaxKinds && counts.count(kind) == 0) kind = reason;
  const int64_t count = ++counts[kind];
  if (count >= kMaxReportedEach) {
    absl::StrAppend(&message, text::kRepetitions, count, " times",
                    count == kMaxReportedEach ? "; from now on only the 10th, the 100th, ... are reported)" : ")");
  }
  return count <= kMaxReportedEach || is_power_of_ten(count);
}

Spools::Damage Spools::note_damage(const RankKey& rank, int64_t offset) {
  std::set<int64_t>& known = damage_[rank];
  if (known.size() >= kMaxReportedDamage || !known.insert(offset).second) return Damage::kIgnore;
  return known.size() == kMaxReportedDamage ? Damage::kReportLast : Damage::kReport;
}

std::vector<RankKey> Spools::drop(const std::string& uid) {
  std::vector<RankKey> had;
  for (auto it = cursors_.lower_bound({uid, 0, 0}); it != cursors_.end() && std::get<0>(it->first) == uid;) {
    had.push_back(it->first);
    it = cursors_.erase(it);
  }
  std::erase_if(warnings_, [&](const auto& counted) { return counted.first.first == uid; });
  std::erase_if(damage_, [&](const auto& known) { return std::get<0>(known.first) == uid; });
  return had;
}

}  // namespace titan::core
