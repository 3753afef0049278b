#pragma once

// Diagnoses an attempt that stood still or failed in a collective: which ranks diverged first, and a report for people.
// Pure: findings in, text out.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "controller/job/divergence.h"
#include "nlohmann/json.hpp"

namespace titan::job {

// One rank, as its node found it.
struct RankFinding {
  std::string node;
  bool alive = false;  // True if it was alive when its node looked.
  std::string phase;
  int64_t step = 0;
  int64_t phase_milliseconds = 0;
  rank_protocol::RankFlight flight;
  std::string flight_missing;  // Why the flight is missing.
  std::string stacks;          // Stacks of all its threads, as text.
  std::string stacks_missing;  // Why the stacks are missing.
};

struct Findings {
  std::map<int, RankFinding> ranks;  // From the nodes that answered.
  int world = 0;
  // True if the ranks stood still. Otherwise only a mismatch (another operation, type or size) counts, since everything
  // else may be a consequence of the failure.
  bool stuck = false;
};

// The record of one diagnosis.
struct DiagnosisRecord {
  int attempt = 0;
  int64_t time_ns = 0;
  std::string verdict;     // One line. Empty: no rank is known to have diverged.
  std::vector<int> ranks;  // Ranks that diverged.
  std::string collective;  // "all_gather 17 of tp (ranks 0-3)".
  std::string report;
};

void to_json(nlohmann::json& json, const DiagnosisRecord& record);
void from_json(const nlohmann::json& json, DiagnosisRecord& record);

// Takes time in proportion to the number of all calls. `title` is the report's first line. The report has at most
// kMaxReport bytes: ranks with the same stacks share one block, diverging ranks come first, and what is left out is
// counted.
DiagnosisRecord diagnose(const Findings& findings, const std::string& title);

inline constexpr size_t kMaxReport = 384 << 10;  // Bytes.
// Returns how many of its newest calls to request from each rank, so that all calls together take some megabytes.
int max_calls(int world);

}  // namespace titan::job
