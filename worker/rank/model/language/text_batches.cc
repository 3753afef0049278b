#include "worker/rank/model/language/text_batches.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "common/plan/config/data_sources.h"
#include "common/plan/models/repository.h"
#include "worker/rank/data/loader/configured_files.h"
#include "worker/rank/model/registry.h"

namespace titan::model {
namespace {

// A token beyond the embedding would fail in the middle of a step.
absl::Status check_vocabulary(const config::ModelSection& model, const data::DataLoader& loader) {
  TITAN_ASSIGN_OR_RETURN(const models::ModelSpec spec, find_spec(model));
  if (loader.max_token_id() < spec.vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model.hf_assets_path: the tokenizer in ", model.hf_assets_path,
                                                 " has tokens up to ", loader.max_token_id(), ", but ", model.name, " ",
                                                 model.flavor, " has a vocabulary of ", spec.vocab_size));
}

// Returns a loader's failure. If the folder has no tokenizer, it explains how to get one.
absl::Status explain(const absl::Status& failure, const config::ModelSection& model) {
  if (!absl::IsNotFound(tokenizer_files::find_tokenizer(model.hf_assets_path).status())) return failure;
  return absl::Status(failure.code(), absl::StrCat("model.hf_assets_path: ", std::string(failure.message()), "; ",
                                                   models::tokenizer_advice(model.name, model.flavor)));
}

// Returns the folder for data that the ranks share and that a resumed job finds again.
std::string data_folder(const config::JobConfig& config) { return absl::StrCat(config.job.dump_folder, "/data"); }

// Returns the row of the stream with which a step, counted from 1, begins. Of the weights before `share.before` only
// the newest matter.
int64_t first_row_of(int64_t step, const DataShare& share) {
  const RowsBefore& before = share.before;
  return std::max<int64_t>(0, before.rows + (step - 1 - before.steps) * share.global_batch);
}

absl::Status find_sources(const std::string& section, const config::DataLoaderSection& settings, const DataShare& share,
                          data::LoaderOptions& options) {
  for (const config::DataSource& source : settings.sources) {
    absl::StatusOr<data::ConfiguredFiles> found =
        data::configured_files(source.dataset.value_or("c4_test"), source.dataset_path,
                               config::settings_of(source, settings), options.counts_folder);
    if (!found.ok()) {
      return annotate(found.status(), absl::StrCat(section, ".dataloader.sources: source \"", source.name, "\""));
    }
    options.sources.push_back({source.name, std::move(found->files), std::move(found->kind), source.repeat});
    if (source.shuffle) options.sources.back().shuffle = data::shuffle_from_name(*source.shuffle);
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<config::SourceWeights> weights, config::source_weights(settings.sources));
  for (const config::SourceWeights& change : weights) {
    options.weights.push_back({first_row_of(change.from_step, share), change.weights});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<data::DataLoader>> open(const config::ModelSection& model, const std::string& section,
                                                       const std::string& dataset,
                                                       const std::optional<std::string>& dataset_path,
                                                       const config::DataLoaderSection& settings,
                                                       const DataShare& share, data::LoaderOptions options) {
  if (settings.sources.empty()) {
    absl::StatusOr<data::ConfiguredFiles> found =
        data::configured_files(dataset, dataset_path, settings, options.counts_folder);
    if (!found.ok()) return annotate(found.status(), absl::StrCat(section, ".dataset"));
    options.files = std::move(found->files);
    options.kind = std::move(found->kind);
  } else {
    TITAN_RETURN_IF_ERROR(find_sources(section, settings, share, options));
  }
  options.order = settings.order == "per_rank" ? data::Order::kPerRank : data::Order::kGlobal;
  options.shuffle = data::shuffle_from_name(settings.shuffle).value_or(data::Shuffle::kNone);
  options.shuffle_seed = settings.shuffle_seed;
  options.packing_window = settings.packing == "best_fit" ? settings.packing_window : 0;
  options.max_bad_lines = settings.max_bad_lines;
  options.prefetch = settings.prefetch;
  absl::StatusOr<std::unique_ptr<data::DataLoader>> loader = data::open_loader(options);
  if (!loader.ok()) return explain(loader.status(), model);
  TITAN_RETURN_IF_ERROR(check_vocabulary(model, **loader));
  return loader;
}

}  // namespace

absl::StatusOr<std::unique_ptr<data::DataLoader>> open_training_loader(const config::JobConfig& config,
                                                                       const DataShare& share) {
  const config::TrainingSection& training = config.training;
  return open(config.model, "training", training.dataset, training.dataset_path, training.dataloader, share,
              {.tokenizer_folder = config.model.hf_assets_path,
               .batch = share.local_batch,
               .seq_len = training.seq_len,
               .dp_rank = share.dp_rank,
               .dp_size = share.dp_size,
               .loop = true,
               .counts_folder = data_folder(config),
               .spans = share.spans});
}

absl::StatusOr<std::unique_ptr<data::DataLoader>> open_validation_loader(const config::JobConfig& config,
                                                                         const DataShare& share) {
  const config::ValidationSection& validation = config.validation;
  return open(config.model, "validation", validation.dataset, validation.dataset_path, validation.dataloader, share,
              {.tokenizer_folder = config.model.hf_assets_path,
               .batch = share.local_batch,
               .seq_len = validation.seq_len,
               .dp_rank = share.dp_rank,
               .dp_size = share.dp_size,
               .loop = validation.steps > 0,
               .counts_folder = data_folder(config),
               .spans = share.spans});
}

}  // namespace titan::model
