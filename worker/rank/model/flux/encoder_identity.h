#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/model/flux/conditioner.h"
#include "worker/rank/model/flux/image_batches.h"

namespace titan::model::flux {

// Returns a short text for each of "t5_encoder", "clip_encoder", "autoencoder_path" and "tokenizers" that differs for
// other encoders: checksums of configurations, of the names, shapes and first numbers of all tensors, and of the ids of
// a sample caption. Errors: those of the encoders' files.
absl::StatusOr<std::map<std::string, std::string>> identify_encoders(const ConditionerOptions& options,
                                                                     CaptionTokenizers& tokenizers);

}  // namespace titan::model::flux
