#pragma once

// Finds the numbers of a job's encoders where their weights are not needed: in estimates and dry runs.

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/encoders/options.h"
#include "common/plan/models/flux_spec.h"

namespace titan::encoders {

// Returns the numbers of the released encoders of the job's names, or of those with the widths that the model reads,
// because a folder may exist only on the nodes; of Flux's autoencoder, or of that of the installation. Reads no file.
// Errors: NotFound if no released encoder has the width, names the key.
absl::StatusOr<EncoderOptions> released_encoder_options(const config::EncoderSection& encoder,
                                                        const models::FluxSpec& spec);

// The same, but the config.json of a folder that exists comes first. Errors: also those of a config.json, with its key.
absl::StatusOr<EncoderOptions> find_encoder_options(const config::EncoderSection& encoder,
                                                    const models::FluxSpec& spec);

}  // namespace titan::encoders
