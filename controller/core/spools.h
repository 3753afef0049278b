#pragma once

// How far the events of the ranks' spools are known, and which of their warnings and damage have been reported already.

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
  // The number of the newest event that was taken from the rank. Creates the cursor if there is none.
  int64_t& cursor(const RankKey& rank) { return cursors_[rank]; }

  // Counts the message and adds the count to it. The first few messages of a kind are reported, then those that show
  // that it continues. A restarted controller counts from zero.
  bool is_to_be_told(const AttemptKey& attempt, const std::string& reason, std::string& message);

  // Damage is reported once for each offset, up to a limit for each rank.
  enum class Damage { kNotToBeTold, kToBeTold, kLastToBeTold };
  Damage note_damage(const RankKey& rank, int64_t offset);

  std::vector<RankKey> drop(const std::string& uid);  // Forgets a job; returns the ranks that had cursors, in order.

 private:
  std::map<RankKey, int64_t> cursors_;
  std::map<AttemptKey, std::map<std::string, int64_t>> warnings_;  // By kind: how many there were.
  std::map<RankKey, std::set<int64_t>> damage_;                    // Offsets.
};

}  // namespace titan::core
