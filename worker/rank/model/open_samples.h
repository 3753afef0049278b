#pragma once

// Opens the samples with images that the keys of a job name, for every model that learns from images.

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/data/loader/batch_source.h"
#include "worker/rank/data/samples/sample_files.h"
#include "worker/rank/data/samples/sample_order.h"
#include "worker/rank/data/samples/sample_rows.h"
#include "worker/rank/data/samples/sample_set.h"
#include "worker/rank/model/objective.h"

namespace titan::model {

// Finds the files that [training] or [validation] names: on this machine, in an object store ("s3://...") or on a hub
// ("hf://..."). With format "encodings" they are stored encodings (SampleKind::encodings). Errors: those of
// data::find_encodings(), data::samples_on_hub() and data::sample_dataset_files().
absl::StatusOr<data::SampleFiles> find_samples(const config::JobConfig& config, bool training);

// Opens them on data-parallel rank `rank` of `ranks`, which share the work of indexing. Errors: those of
// data::SampleSet::open().
absl::StatusOr<std::shared_ptr<data::SampleSet>> open_samples(const config::JobConfig& config,
                                                              const data::SampleFiles& found, int rank, int ranks);

// Returns the order in which the rows of [training] or [validation] take the samples.
data::SampleOrder sample_order(const data::SampleSet& samples, const config::DataLoaderSection& loader);

// Returns how a rank reads its share. `loop`: begins again at the end of the samples.
data::SampleRows::Options reading_options(const config::DataLoaderSection& loader, const DataShare& share, bool loop);

// Returns the cost of reading since the last SampleRows::take_progress() as the trainer logs it; nothing if no time has
// passed.
std::optional<data::ReadingCost> reading_cost(const data::SampleProgress& progress);

}  // namespace titan::model
