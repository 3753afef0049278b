#pragma once

// Reads the encoders' numbers from the config.json of transformers and diffusers. Missing keys have the defaults of
// their classes only where those classes leave defaults out when they write a file.

#include <string>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/encoders/options.h"
#include "nlohmann/json.hpp"

namespace titan::encoders {

// Returns the object in {folder}/config.json. Errors: NotFound, InvalidArgument if it is not a JSON object.
absl::StatusOr<nlohmann::json> read_config(storage::Files& files, const std::string& folder);

// Errors of all three: InvalidArgument, which names the kind of model if it is another one, or the key and its value:
// missing, of the wrong type, or a choice that is not supported.

// Reads the configuration of a T5EncoderModel or of a whole T5.
absl::StatusOr<T5Options> t5_options(const nlohmann::json& config);
// Reads the configuration of a CLIPTextModel, or the "text_config" of a CLIPModel.
absl::StatusOr<ClipTextOptions> clip_text_options(const nlohmann::json& config);
// Reads the configuration of diffusers' AutoencoderKL.
absl::StatusOr<AutoencoderOptions> autoencoder_options(const nlohmann::json& config);

}  // namespace titan::encoders
