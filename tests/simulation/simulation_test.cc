// Whole clusters of real cores under random faults. A failure names its seed: TITAN_SIMULATION_SEED=N replays it, with
// TITAN_SIMULATION_TRACE=1 telling what happened. TITAN_LONG=1 takes ten thousand seeds, TITAN_SIMULATION_SEEDS any
// number.

#include <cstdlib>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/simulation/scenario.h"

namespace titan::simulation {
namespace {

int64_t from_environment(const char* key, int64_t otherwise) {
  const char* text = getenv(key);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

TEST(SimulationTest, WhateverFailsTheRulesHold) {
  const int64_t many = getenv("TITAN_LONG") != nullptr ? 10'000 : 400;
  const int64_t only = from_environment("TITAN_SIMULATION_SEED", 0);
  const int64_t first = only != 0 ? only : from_environment("TITAN_SIMULATION_FIRST", 1);
  const int64_t seeds = only != 0 ? 1 : from_environment("TITAN_SIMULATION_SEEDS", many);
  std::map<Fault, int64_t> faults;
  int64_t events = 0, failed = 0;
  absl::Duration simulated;
  for (int64_t seed = first; seed < first + seeds; ++seed) {
    const Outcome outcome = Scenario(static_cast<uint64_t>(seed), size_of(static_cast<uint64_t>(seed))).run();
    for (const auto& [fault, count] : outcome.faults) faults[fault] += count;
    events += outcome.events;
    simulated += outcome.simulated;
    if (outcome.violations.empty()) continue;
    ADD_FAILURE() << "seed " << seed << ": " << absl::StrJoin(outcome.violations, "\n  ");
    if (++failed >= 10) break;
  }
  std::cout << seeds << " seeds from " << first << ": " << events << " events, " << absl::FormatDuration(simulated)
            << " simulated\n";
  for (const auto& [fault, count] : faults) std::cout << "  " << name(fault) << ": " << count << "\n";
}

}  // namespace
}  // namespace titan::simulation
