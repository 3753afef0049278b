#pragma once

// Writes a step as a torch.distributed.checkpoint folder that torchtitan loads, or resumes from, its place in the data
// included.

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
  bool model_only = false;  // Else, of a full step, optimizer, schedule, train state and place in the data too.
  at::ScalarType dtype = at::kFloat;  // Of the model when it goes alone; with the rest it stays as it is.
  checkpoint::Overflow overflow = checkpoint::Overflow::kRefuse;
  int64_t max_file_bytes = int64_t{2} << 30;
  int64_t max_piece_bytes = int64_t{256} << 20;  // Of a tensor; so much is in memory, twice.
  std::string tokenizer;                         // For the place in the data; empty: where the step's job had it from.
};

// Writes the new folder `folder`; what could not be taken along, and what to do about it, as warnings. Errors:
// FailedPrecondition for an optimizer that torchtitan does not have, or a step that does not say its configuration.
absl::StatusOr<std::vector<std::string>> write_dcp(storage::Files& files, checkpoint::StepReader& step,
                                                   const models::ModelSpec& spec, const DcpExport& options,
                                                   const std::string& folder,
                                                   const std::function<void(const std::string& file)>& progress);

// Where a job stands in its data, as torchtitan's data loader says it. `dataloader` and `per_rank` are a manifest's.
// Reads the one document in which each rank stands. {"world_size", "dp_rank_0": state, ...}.
absl::StatusOr<nlohmann::json> torchtitan_positions(const config::JobConfig& config, const nlohmann::json& dataloader,
                                                    const std::vector<nlohmann::json>& per_rank,
                                                    const std::string& tokenizer);

}  // namespace titan::tools
