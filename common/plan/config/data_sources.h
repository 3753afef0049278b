#pragma once

// Derives the settings and the weights of each data source of a job, and checks the keys that name its data.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"

namespace titan::config {

// Returns the dataloader's `settings` with the format, keys, train_on and text_documents that the source sets.
DataLoaderSection settings_of(const DataSource& source, DataLoaderSection settings);

// Weights of all sources that apply until the next change, in the sources' order. They are integers in units of 1e-9,
// which are exact, so that every machine distributes rows alike.
struct SourceWeights {
  std::int64_t from_step = 1;  // First step, counted from 1, that uses these weights.
  std::vector<std::int64_t> weights;

  bool operator==(const SourceWeights&) const = default;
};

// Returns all changes of weights in step order; the first is for step 1. Pure, so that the controller can check what a
// rank will do. Errors: InvalidArgument (naming the source and the member) for an entry of weight_at_step that is not
// STEP: WEIGHT, steps that do not increase, a weight that is neither 0 nor from 1e-9 to 1e6, and a step from which no
// source has a weight.
absl::StatusOr<std::vector<SourceWeights>> source_weights(const std::vector<DataSource>& sources);

}  // namespace titan::config
