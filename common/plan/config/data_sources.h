#pragma once

// Derives the settings and the weights of each data source of a job, and checks the keys that name its data.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"

namespace titan::config {

// The keys of dataloader as one of its sources has them: its own where it sets one.
DataLoader settings_of(const DataSource& source, DataLoader settings);

// The weights of all sources from one step on. They are integers in units of 1e-9, in the sources' order: exact, so
// that every machine deals rows alike.
struct SourceWeights {
  std::int64_t from_step = 1;  // The first step, counted from 1, that takes rows by them.
  std::vector<std::int64_t> weights;

  bool operator==(const SourceWeights&) const = default;
};

// All changes in order of their steps; the first is of step 1. Pure, so that the controller can check what a rank will
// do. Errors: InvalidArgument (names the source and the member) for an entry of weight_at_step that is not STEP:
// WEIGHT, steps that do not rise, a weight that is too small to count, and a step from which on no source has a weight.
absl::StatusOr<std::vector<SourceWeights>> source_weights(const std::vector<DataSource>& sources);

}  // namespace titan::config
