#pragma once

// Files of the autoencoder: Black Forest Labs' ae.safetensors, or a folder of diffusers.

#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/encoders/options.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/model/encoders/weight_names.h"

namespace titan::encoders {

// The two halves, as their files name them.
enum class Half { kEncoder, kDecoder };

// Returns the names of one half: Black Forest Labs', diffusers', and those of attention in older files of diffusers.
// The other half's tensors are not used.
WeightNames autoencoder_names(const AutoencoderOptions& options, Half half);

// Returns the numbers of the autoencoder at `path`: from config.json if `path` is a folder that has one, else from the
// shapes of its tensors with Flux's scale, shift and number of norm groups. `weights` are those at `path`. Errors:
// those of autoencoder_options(); FailedPrecondition if the tensors are not an autoencoder's.
absl::StatusOr<AutoencoderOptions> autoencoder_options_at(storage::Files& files, const std::string& path,
                                                          const checkpoint::HfFolder& weights);

}  // namespace titan::encoders
