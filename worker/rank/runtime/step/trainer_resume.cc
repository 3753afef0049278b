// What a Trainer takes over from the checkpoint, or the weights, that it begins with.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/counted.h"
#include "nlohmann/json.hpp"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/step/optimizer_setup.h"
#include "worker/rank/runtime/step/trainer.h"

namespace titan::runtime {

using rank_protocol::kExitUserError;

namespace {

// -1: it has none.
int64_t first_layer_with_experts(const models::ModelSpec& spec) {
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    if (spec.layer_has_experts(layer)) return layer;
  }
  return -1;
}

}  // namespace

void Trainer::restore_state(const checkpoint::LoadResult& loaded) {
  first_step_ = step_ = schedule_step_ = loaded.step;
  tokens_seen_ = loaded.train_state.value("ntokens_seen", int64_t{0});
  if (loaded.model_only) return;
  tell_conversion(loaded);
  if (loaded.model_loaded) {
    const auto seed = loaded.train_state.find("seed");
    seed_ = seed == loaded.train_state.end() ? std::nullopt : std::optional(seed->get<int64_t>());
  }
  // A seed that nobody set is drawn by each start: without the first one's, updates after a resume would be others.
  rounding_seed_ = loaded.train_state.value("rounding_seed", seed_.value_or(rounding_seed_));
  optimizer_->set_seed(static_cast<uint64_t>(rounding_seed_));
  const auto schedule = loaded.train_state.find("lr_scheduler");
  schedule_step_ = schedule == loaded.train_state.end() ? 0 : schedule->value("last_epoch", step_);
}

// Own steps come first, which whoever names other weights may not expect. An attempt that takes over from an earlier
// one of its job is no surprise.
void Trainer::tell_unused_start(const checkpoint::LoadResult& loaded) const {
  const config::Checkpoint& keys = config_.checkpoint;
  if (context_.rank != 0 || adapters_ || loaded.source != checkpoint::Source::kCheckpoint) return;
  if (keys.load_step >= 0 || (!keys.initial_load_in_hf && !keys.initial_load_path)) return;
  const char* const key = keys.initial_load_in_hf ? "checkpoint.initial_load_in_hf" : "checkpoint.initial_load_path";
  const std::string text = absl::StrCat(key, " is not used: training resumes from ", loaded.path,
                                        "; to begin with other weights give the job another job.dump_folder");
  if (context_.attempt > 1) return log_line(text);
  context_.reporter->warning(text);
}

// A step from before steps said it was saved in training.dtype.
void Trainer::tell_conversion(const checkpoint::LoadResult& loaded) const {
  const std::vector<std::string>& excluded = config_.checkpoint.exclude_from_loading;
  const auto excludes = [&](const char* what) {
    return std::find(excluded.begin(), excluded.end(), what) != excluded.end();
  };
  if (context_.rank != 0 || excludes("optimizer") || excludes("train_state")) return;
  const std::string saved = loaded.train_state.value("optimizer_states", config_.training.dtype);
  const std::string notice = conversion_notice(saved, config_);
  if (!notice.empty()) context_.reporter->warning(notice);
}

// How far steps move the biases that balance the experts. A set key wins; without one a resumed job goes on as it
// began, and where the loaded weights have no such biases they stay zero: an export could not hold them.
void Trainer::settle_balance(const checkpoint::LoadResult& loaded) {
  if (!balance_) return;
  const std::optional<double>& of_weights = loaded.load_balance_coeff;
  const bool resumed = loaded.source == checkpoint::Source::kCheckpoint;
  double& coefficient = load_balance_coeff_ = spec_.moe->load_balance_coeff;  // The key's, where it is set.
  if (!config_.model.load_balance_coeff && of_weights && (resumed || *of_weights == 0)) coefficient = *of_weights;
  if (adapters_) coefficient = 0;  // What stays as it is includes the biases.
  balance_->set_coefficient(coefficient);
  if (context_.rank == 0 && !adapters_) tell_balance(coefficient);
}

void Trainer::tell_balance(double coefficient) const {
  const std::string key = absl::StrCat("model.load_balance_coeff = ", coefficient);
  if (coefficient == 0)
    return log_line(absl::StrCat("The biases that balance the experts stay as they are (", key, ")"));
  log_line(absl::StrCat("Each step moves the biases that balance the experts (", key, ")"));
  const int64_t layer = first_layer_with_experts(spec_);
  if (hf_mapper_ == nullptr || layer < 0) return;
  const auto layouts = hf_mapper_->layouts(absl::StrCat("layers.", layer, ".moe.expert_bias"));
  if (!layouts.ok() || !layouts->empty()) return;
  context_.reporter->warning(absl::StrCat(
      "training moves the biases that balance the experts (", key, "), for which Hugging Face weights of ", spec_.name,
      " have no place: an export is another model than the one that was trained; model.load_balance_coeff = 0 leaves "
      "them as they are"));
}

absl::StatusOr<BatchPlan> Trainer::plan_rows(int64_t global_batch, int dp_size) const {
  return plan_batch(global_batch, config_.training.local_batch_size, dp_size,
                    [this](int64_t rows) { return takes_batch(rows); });
}

// The batch that nobody set belongs to the job, not to the mesh: it stays what it was when the number of ranks changes.
// A set key says what the job wants from here on.
void Trainer::settle_batch(const checkpoint::LoadResult& loaded, int dp_size) {
  const auto stored = loaded.train_state.find("global_batch");
  if (stored == loaded.train_state.end()) return;
  const config::Training& training = config_.training;
  const BatchPlan planned = batch_plan_;
  const auto before = stored->get<int64_t>();
  const auto warn = [this](const std::string& text) {
    if (context_.rank == 0) context_.reporter->warning(text);
  };
  if (training.global_batch_size > 0) {
    if (before != planned.global_batch) {
      warn(absl::StrCat("the checkpoint was trained with a global batch of ", counted(before, "row"),
                        "; training continues with training.global_batch_size = ", planned.global_batch));
    }
    return;
  }
  absl::StatusOr<BatchPlan> kept = plan_rows(before, dp_size);
  if (!kept.ok()) {
    kept = annotate(kept.status(), "the checkpoint's global batch is kept where training.global_batch_size is not set");
  }
  batch_plan_ = value(std::move(kept), kExitUserError, "BATCH_SIZE");
  if (before != planned.global_batch) {
    warn(absl::StrCat("the checkpoint's global batch of ", counted(before, "row"), " is kept; the configuration gives ",
                      planned.global_batch, ": set training.global_batch_size to change it"));
  }
  if (batch_plan_.local_batch > training.local_batch_size) {
    warn(absl::StrCat("a local batch of ", counted(batch_plan_.local_batch, "row"), " is used, not ",
                      training.local_batch_size, ": no smaller one keeps the global batch on this mesh"));
  }
}

// How far the stream of several sources is, whose weights change by the job's steps: after a change of the batch that
// is no longer a multiple of it.
RowsBefore Trainer::rows_before(const checkpoint::LoadResult& loaded) const {
  const auto dataloader = loaded.train_state.find("dataloader");
  const auto none = RowsBefore{.steps = step_, .rows = step_ * batch_plan_.global_batch};
  if (config_.training.dataloader.sources.empty() || dataloader == loaded.train_state.end()) return none;
  const nlohmann::json cursor = dataloader->value("cursor", nlohmann::json::object());
  return {.steps = step_, .rows = cursor.is_object() ? cursor.value("row", none.rows) : none.rows};
}

void Trainer::restore_data(const checkpoint::LoadResult& loaded) {
  const auto cursor = loaded.train_state.find("dataloader");
  if (cursor == loaded.train_state.end()) {
    // Weights of sources change by the job's steps, also where its data begins anew.
    check(loader_->begin_at(step_ * batch_plan_.global_batch), kExitUserError, "DATA_CURSOR");
    return;
  }
  if (cursor->contains("ranks")) return restore_torchtitan_data(*cursor);
  const std::string saved_order = cursor->value("order", "global");
  const std::string& order = config_.training.dataloader.order;
  if (saved_order != order) {
    throw Failure(kExitUserError, "DATA_CURSOR",
                  absl::StrCat("training.dataloader.order = \"", order, "\" cannot go on from a checkpoint of order \"",
                               saved_order,
                               "\"; put \"dataloader\" into checkpoint.exclude_from_loading to start the "
                               "data anew"));
  }
  if (order == "global") {
    check(loader_->restore(cursor->at("cursor")), kExitUserError, "DATA_CURSOR");
    return;
  }
  const int dp_size = context_.mesh->mesh().size(mesh::Axis::kBatch);
  if (cursor->value("dp_size", 0) != dp_size || static_cast<int>(loaded.per_rank.size()) != context_.world) {
    throw Failure(kExitUserError, "DATA_CURSOR",
                  absl::StrCat("a checkpoint with training.dataloader.order = \"per_rank\" of ",
                               cursor->value("dp_size", 0), " data-parallel ranks cannot go on with ", dp_size,
                               "; put \"dataloader\" into checkpoint.exclude_from_loading to start the data anew"));
  }
  check(loader_->restore(loaded.per_rank[context_.rank]), kExitUserError, "DATA_CURSOR");
}

// Of a torchtitan checkpoint: one position for each of its data-parallel ranks. They are ours in order per_rank of the
// same degree; a single one is the place in the one stream of order global, whatever the degree is here.
void Trainer::restore_torchtitan_data(const nlohmann::json& cursor) {
  const std::string& order = config_.training.dataloader.order;
  const int dp_size = context_.mesh->mesh().size(mesh::Axis::kBatch);
  const int saved = cursor.at("dp_size");
  const char* const remedy = "; put \"dataloader\" into checkpoint.exclude_from_loading to start the data anew";
  if (order == "global" ? saved != 1 : saved != dp_size) {
    throw Failure(kExitUserError, "DATA_CURSOR",
                  absl::StrCat("a torchtitan checkpoint of ", counted(saved, "data-parallel rank"),
                               " goes on with training.dataloader.order = \"per_rank\" on as many",
                               saved == 1 ? ", or with \"global\" on any number" : "", ", not with \"", order, "\" on ",
                               dp_size, remedy));
  }
  const int rank = order == "global" ? 0 : context_.mesh->mesh().index(context_.rank, mesh::Axis::kBatch);
  const nlohmann::json& position = cursor.at("ranks").at(static_cast<size_t>(rank));
  if (const auto why = position.find("unread"); why != position.end()) {
    throw Failure(kExitUserError, "DATA_CURSOR",
                  absl::StrCat("the torchtitan checkpoint's place in the data cannot be taken over: ",
                               why->get<std::string>(), remedy));
  }
  check(loader_->restore(position), kExitUserError, "DATA_CURSOR");
}

}  // namespace titan::runtime
