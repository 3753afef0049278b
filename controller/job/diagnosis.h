#pragma once

// What was found of the ranks of an attempt that stood still or failed in a collective: who first went another way, and
// a report for people. Pure: findings in, words out.

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
  bool alive = false;  // When it was looked at.
  std::string phase;
  int64_t step = 0;
  int64_t phase_milliseconds = 0;
  rank_protocol::RankFlight flight;
  std::string flight_missing;  // Why there is none.
  std::string stacks;          // Of all its threads, as text.
  std::string stacks_missing;
};

struct Findings {
  std::map<int, RankFinding> ranks;  // Of some nodes; the others did not answer.
  int world = 0;
  // Whether the ranks stood still. Of an attempt that failed in another way only what cannot be a consequence counts: a
  // rank that came with another operation or size, or went past a collective.
  bool stuck = false;
};

// The record of one diagnosis.
struct DiagnosisRecord {
  int attempt = 0;
  int64_t time_ns = 0;
  std::string verdict;     // One line; empty: nobody went another way, as far as can be told.
  std::vector<int> ranks;  // That went another way.
  std::string collective;  // "all_gather 17 of tp (ranks 0-3)".
  std::string report;
};

void to_json(nlohmann::json& json, const DiagnosisRecord& record);
void from_json(const nlohmann::json& json, DiagnosisRecord& record);

// Costs about the number of all calls. `title`: the report's first line. The report has at most kMostReport bytes:
// ranks with the same stacks share one block, those that went another way come first, and what is left out is counted.
DiagnosisRecord diagnose(const Findings& findings, const std::string& title);

inline constexpr size_t kMostReport = 384 << 10;
// Calls that each rank of a world is asked for, so that what comes together stays some megabytes.
int most_calls(int world);

}  // namespace titan::job
