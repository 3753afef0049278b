#pragma once

// How far each rank's spool was read, and which of its warnings and damage were reported already.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "controller/core/stray.h"

namespace titan::core {

using RankKey = std::tuple<std::string, int, int>;  // Job uid, attempt, rank.

class Spools {
 public:
  // Returns the number of the newest event that was taken from the rank, 0 at first. The caller may change it.
  int64_t& cursor(const RankKey& rank) { return cursors_[rank]; }

  // Counts the message and, from the third of its kind, appends the count to it. True for the first few messages of a
  // kind, then only for the 10th, the 100th and so on, to show that it continues. A restarted controller counts from
  // zero.
  bool should_report(const AttemptKey& attempt, const std::string& reason, std::string& message);

  // Damage is reported once per offset, up to a limit per rank.
  enum class Damage { kIgnore, kReport, kReportLast };
  Damage note_damage(const RankKey& rank, int64_t offset);

  std::vector<RankKey> drop(const std::string& uid);  // Forgets a job. Returns the ranks that had cursors, in order.

 private:
  std::map<RankKey, int64_t> cursors_;
  std::map<AttemptKey, std::map<std::string, int64_t>> warnings_;  // Number of messages, by kind.
  std::map<RankKey, std::set<int64_t>> damage_;                    // Reported offsets.
};

}  // namespace titan::core
