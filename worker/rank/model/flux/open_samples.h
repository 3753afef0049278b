#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/data/samples/sample_files.h"
#include "worker/rank/data/samples/sample_set.h"

namespace titan::model::flux {

// Finds the files that [training] or [validation] names: on this machine, in an object store ("s3://...") or on a hub
// ("hf://..."). With format "encodings" they are stored encodings (SampleKind::encodings). Errors: those of
// data::find_encodings(), data::samples_on_hub() and data::sample_dataset_files().
absl::StatusOr<data::SampleFiles> find_samples(const config::JobConfig& config, bool training);

// Opens them on data-parallel rank `rank` of `ranks`, which share the work of indexing. Errors: those of
// data::SampleSet::open().
absl::StatusOr<std::shared_ptr<data::SampleSet>> open_samples(const config::JobConfig& config,
                                                              const data::SampleFiles& found, int rank, int ranks);

}  // namespace titan::model::flux
