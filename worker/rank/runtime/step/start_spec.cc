#include "worker/rank/runtime/step/start_spec.h"

#include <atomic>
#include <string>

#include "common/plan/models/identity.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/start_model.h"
#include "worker/rank/checkpoint/steps/exchange.h"
#include "worker/rank/runtime/failure/failure.h"

namespace titan::runtime {

checkpoint::Setup start_setup(const RankContext& context) {
  checkpoint::Setup setup;
  setup.dump_folder = context.config.job.dump_folder;
  setup.config = context.config.checkpoint;
  setup.hf_assets_path = context.config.model.hf_assets_path;
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
    words = models::to_json(checkpoint::model_of_start(start_setup(context), spec, taken)).dump();
    if (!taken.empty()) log_line("Numbers of the model are " + taken);
  }
  const std::atomic<bool> stop = false;
  checkpoint::Exchange exchange(context.store, context.rank, context.world,
                                {.start = absl::Seconds(context.config.comm.init_timeout_seconds)}, &stop);
  words = value(exchange.broadcast("start_spec", words), rank_protocol::kExitPeerLost, "START_SPEC");
  return models::with_positions(nlohmann::json::parse(words), spec);
}

}  // namespace titan::runtime
