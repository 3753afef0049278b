#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/plan/config/update_rules.h"
#include "common/plan/models/adapters.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/pipeline/schedule.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/slice.h"
#include "worker/rank/model/objective.h"
#include "worker/rank/optim/lr_schedule.h"
#include "worker/rank/optim/optimizer.h"
#include "worker/rank/parallel/expert_balance.h"
#include "worker/rank/parallel/qk_clip.h"
#include "worker/rank/runtime/engine/sharded_model.h"
#include "worker/rank/runtime/step/microbatches.h"
#include "worker/rank/runtime/step/rank_context.h"

namespace titan::runtime {

// A rank's share of the model and what trains it, before any weight has a value.
struct Built {
  models::ModelSpec spec;
  std::unique_ptr<model::Objective> objective;      // Opens the data and says what the loss sums.
  std::unique_ptr<checkpoint::HfMapper> hf_mapper;  // Null: the model has no Hugging Face names.
  std::optional<models::AdapterSpec> adapters;      // Empty: the model itself is trained.
  std::unique_ptr<ShardedModel> model;
  std::optional<parallel::ExpertBalance> balance;  // Empty: the model has no experts. load() sets its coefficient.
  pipeline::Schedule pipeline;                     // Schedule of one batch of the loader.
  MicrobatchOptions microbatch_options;
  config::UpdateRules rules;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<parallel::QkClip> qk_clip;  // Null: optimizer.qk_clip is off.
  std::optional<optim::LrSchedule> schedule;  // Always set by build().
  std::vector<checkpoint::Slice> slices;      // Contents of a checkpoint.
};

// Builds all of it and joins the mesh (context.mesh). Throws Failure.
Built build(RankContext& context);

}  // namespace titan::runtime
