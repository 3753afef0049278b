#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/vision_spec.h"
#include "worker/rank/checkpoint/shards/slice.h"

namespace titan::model {

// Reads a vision tower from Hugging Face weights of SigLIP 2 (vision_hf_names) into the slices of its parameters, of
// which a rank may have only a part. Other slices stay as they are, and so does the projector if the folder has none.
// Returns notes about settings of the folder that are not applied. Errors: NotFound (no folder, no weights);
// FailedPrecondition, names the file, if they are of another tower; DataLoss.
absl::StatusOr<std::vector<std::string>> load_tower(storage::Files& files, const std::string& folder,
                                                    const models::VisionSpec& spec,
                                                    const std::vector<checkpoint::Slice>& slices);

}  // namespace titan::model
