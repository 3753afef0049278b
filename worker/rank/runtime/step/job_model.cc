#include "worker/rank/runtime/step/job_model.h"

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/models/spec_checks.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/steps/rank_reports.h"
#include "worker/rank/data/loader/configured_files.h"
#include "worker/rank/data/plugin/registry.h"
#include "worker/rank/model/registry.h"
#include "worker/rank/runtime/failure/failure.h"

namespace titan::runtime {

using rank_protocol::kExitBadConfig;

namespace {

absl::Status check_datasets(const std::string& section, const std::string& dataset,
                            const config::DataLoaderSection& settings, bool images) {
  if (images) return absl::OkStatus();  // Its objective finds them.
  if (settings.sources.empty()) {
    const absl::Status known = data::check_dataset_name(dataset);
    return known.ok() ? known : annotate(known, absl::StrCat(section, ".dataset"));
  }
  for (const config::DataSource& source : settings.sources) {
    if (!source.dataset) continue;
    const absl::Status known = data::check_dataset_name(*source.dataset);
    if (known.ok()) continue;
    return annotate(known, absl::StrCat(section, ".dataloader.sources: source \"", source.name, "\""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status load_job_library(const config::JobConfig& config) {
  const std::string& library = config.experimental.custom_import;
  if (library.empty()) return absl::OkStatus();
  TITAN_RETURN_IF_ERROR(model::load_plugin(library));
  TITAN_RETURN_IF_ERROR(data::load_datasets(library));
  const bool images = config::learns_from_images(config.model);
  TITAN_RETURN_IF_ERROR(check_datasets("training", config.training.dataset, config.training.dataloader, images));
  if (!config.validation.enable) return absl::OkStatus();
  return check_datasets("validation", config.validation.dataset, config.validation.dataloader, images);
}

checkpoint::Setup start_setup(const RankContext& context) {
  checkpoint::Setup setup;
  setup.dump_folder = context.config.job.dump_folder;
  setup.config = context.config.checkpoint;
  setup.hf_assets_path = context.config.model.hf_assets_path;
  setup.other_positions = config::overrides_positions(context.config.model);
  setup.larger_vocabulary = context.config.model.overrides.vocab_size.has_value();
  setup.rank = context.rank;
  setup.world = context.world;
  setup.job_uid = context.job_uid;
  setup.attempt = context.attempt;
  setup.committed_step = context.committed_step;
  setup.committed_by_another_job = context.committed_by_another_job;
  return setup;
}

models::ModelSpec start_spec(const RankContext& context, const models::ModelSpec& spec) {
  if (!context.config.checkpoint.enable) return spec;
  std::string words;
  if (context.rank == 0) {
    std::string taken;
    words = models::to_json(checkpoint::spec_for_load(start_setup(context), spec, taken)).dump();
    if (!taken.empty()) log_line("Numbers of the model are " + taken);
  }
  const std::atomic<bool> stop = false;
  checkpoint::ReportExchange exchange(context.store, context.rank, context.world,
                                      {.start = absl::Seconds(context.config.comm.init_timeout_seconds)}, &stop);
  words = value(exchange.broadcast("start_spec", words), rank_protocol::kExitPeerLost, "START_SPEC");
  config::ModelSection plain = context.config.model;
  plain.overrides = {};
  const models::ModelSpec base =
      value(model::find_spec(plain, context.config.experimental.custom_import), kExitBadConfig, "MODEL");
  return value(config::settle_model(base, models::with_weights_numbers(nlohmann::json::parse(words), base),
                                    context.config.model),
               kExitBadConfig, "MODEL");
}

}  // namespace titan::runtime
