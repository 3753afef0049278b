#pragma once

// What torchtitan saves besides tensors, in the words of our own steps.

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/dcp/dcp_folder.h"

namespace titan::checkpoint {

// {"step", "ntokens_seen", "lr_scheduler": {"last_epoch"}, "dataloader": {"order": "per_rank", "dp_size", "ranks"}}: of
// each data-parallel rank {"sample_idx", "tokens_left"} (data/loader.h), or {"unread": why}. Members that the folder
// lacks are left out, but for the step: FailedPrecondition.
absl::StatusOr<nlohmann::json> dcp_train_state(DcpFolder& folder);

}  // namespace titan::checkpoint
