#include "worker/rank/model/open_samples.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/hub/names.h"
#include "common/io/s3/object_files.h"
#include "common/plan/config/image_models.h"
#include "worker/rank/data/samples/hub/hub_samples.h"

namespace titan::model {
namespace {

data::SampleFormat format_of(const std::string& format) {
  if (format == "webdataset") return data::SampleFormat::kWebDataset;
  if (format == "image_folder") return data::SampleFormat::kFolder;
  return format == "parquet_images" ? data::SampleFormat::kParquet : data::SampleFormat::kAuto;
}

std::string data_folder(const config::JobConfig& config) { return absl::StrCat(config.job.dump_folder, "/data"); }

}  // namespace

absl::StatusOr<data::SampleFiles> find_samples(const config::JobConfig& config, bool training) {
  const config::DataLoaderSection& loader = training ? config.training.dataloader : config.validation.dataloader;
  const std::string& named = training ? config.training.dataset : config.validation.dataset;
  const std::string path = (training ? config.training.dataset_path : config.validation.dataset_path)
                               .value_or(config::hub_path_of_images(named));
  if (loader.format == "encodings") return data::find_encodings(path, s3::all_files());
  // Another name is that of a dataset of texts, the default, next to a path of the user's own images.
  const std::string dataset = config::is_image_dataset(named) || path.empty() ? named : data::kUnnamedSamples;
  const data::SampleFormat format = format_of(loader.format);
  data::SampleFiles found;
  if (hub::is_hub_path(path)) {
    TITAN_ASSIGN_OR_RETURN(found, data::samples_on_hub(dataset, path, format, data_folder(config)));
  } else {
    TITAN_ASSIGN_OR_RETURN(found, data::sample_dataset_files(dataset, path, format, &s3::all_files()));
  }
  found.kind.image_key = loader.image_key;
  found.kind.caption_key = loader.caption_key;
  return found;
}

absl::StatusOr<std::shared_ptr<data::SampleSet>> open_samples(const config::JobConfig& config,
                                                              const data::SampleFiles& found, int rank, int ranks) {
  return data::SampleSet::open(
      {.files = found.files, .kind = found.kind, .index_folder = data_folder(config), .rank = rank, .ranks = ranks});
}

data::SampleOrder sample_order(const data::SampleSet& samples, const config::DataLoaderSection& loader) {
  return data::SampleOrder({.samples = samples.samples(),
                            .dataset = samples.facts(),
                            .shuffle = loader.shuffle != "none",
                            .shuffle_seed = loader.shuffle_seed});
}

data::SampleRows::Options reading_options(const config::DataLoaderSection& loader, const DataShare& share, bool loop) {
  return {.batch = share.local_batch,
          .dp_rank = share.dp_rank,
          .dp_size = share.dp_size,
          .loop = loop,
          .max_bad_samples = loader.max_bad_samples < 0 ? data::kAnyNumber : loader.max_bad_samples,
          .threads = loader.decode_threads,
          .spans = share.spans};
}

std::optional<data::ReadingCost> reading_cost(const data::SampleProgress& progress) {
  if (progress.seconds <= 0) return std::nullopt;
  return data::ReadingCost{.rows_per_second = progress.samples_per_second(),
                           .waited_percent = 100 * progress.waited_seconds / progress.seconds,
                           .busy_threads = progress.work_seconds / progress.seconds,
                           .rows_ready = progress.ready};
}

}  // namespace titan::model
