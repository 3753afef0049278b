#include "worker/rank/runtime/step/train_state.h"

#include "worker/rank/runtime/step/optimizer_setup.h"

namespace titan::runtime {

checkpoint::TrainState train_state(const RankContext& context, const Built& built, const Loaded& start,
                                   const Progress& progress) {
  checkpoint::TrainState state;
  const config::JobConfig& config = context.config;
  const std::string& order = config.training.dataloader.order;
  nlohmann::json dataloader = {{"order", order}, {"dp_size", context.mesh->mesh().size(mesh::Axis::kBatch)}};
  if (order == "global") {
    dataloader["cursor"] = start.loader->state();
  } else {
    state.per_rank = start.loader->state();
  }
  state.shared = {{"step", progress.step},
                  {"ntokens_seen", progress.tokens_seen},
                  {"global_batch", start.batch_plan.global_batch},
                  {"seq_len", config.training.seq_len},
                  {"optimizer_states", state_dtype(config)},
                  {"lr_scheduler", {{"last_epoch", progress.schedule_step}}},
                  {"dataloader", std::move(dataloader)}};
  if (built.balance) state.shared["load_balance_coeff"] = start.load_balance_coeff;
  if (start.seed) state.shared["seed"] = *start.seed;
  if (config.optimizer.stochastic_rounding) state.shared["rounding_seed"] = start.rounding_seed;
  if (built.adapters) state.shared["lora"] = start.base;
  return state;
}

}  // namespace titan::runtime
