#pragma once

// Writes a step as a torch.distributed.checkpoint folder that torchtitan loads or resumes from, including its position
// in the data.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/narrowing.h"
#include "worker/rank/checkpoint/shards/step_reader.h"

namespace titan::tools {

struct DcpExport {
  // False: a full step is written with optimizer, schedule, train state and position in the data.
  bool model_only = false;
  at::ScalarType dtype =
      at::kFloat;  // Type of the weights if only the model is written. Otherwise types do not change.
  checkpoint::Overflow overflow = checkpoint::Overflow::kRefuse;
  int64_t max_file_bytes = int64_t{2} << 30;
  int64_t max_piece_bytes = int64_t{256} << 20;  // Bytes of a tensor held in memory, twice.
  std::string
      tokenizer;  // Folder of the tokenizer, for the position in the data. Empty: the one that the step's job used.
};

// Writes the new folder `folder`. Returns warnings about what could not be included and how to handle it.
// FailedPrecondition if torchtitan does not have the optimizer, or if the step does not record its configuration.
absl::StatusOr<std::vector<std::string>> write_dcp(storage::Files& files, checkpoint::StepReader& step,
                                                   const models::ModelSpec& spec, const DcpExport& options,
                                                   const std::string& folder,
                                                   const std::function<void(const std::string& file)>& progress);

// Returns a job's position in its data in the form of torchtitan's data loader: {"world_size", "dp_rank_0": state,
// ...}. `dataloader` and `per_rank` are a manifest's. Reads the one document at each rank's position.
absl::StatusOr<nlohmann::json> torchtitan_positions(const config::JobConfig& config, const nlohmann::json& dataloader,
                                                    const std::vector<nlohmann::json>& per_rank,
                                                    const std::string& tokenizer);

}  // namespace titan::tools
