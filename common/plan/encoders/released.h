#pragma once

// Finds the numbers of a job's encoders where their weights are not needed: in estimates and dry runs.

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/encoders/options.h"
#include "common/plan/models/flux_spec.h"

namespace titan::encoders {

// Returns the numbers of the job's encoders for a model that reads text tokens and vectors of its widths. They are
// those of a folder's config.json, else those of the released encoder of that name, else of the released one with the
// width that the model reads, because a folder may exist only on the nodes. An autoencoder without config.json is
// Flux's. Errors: those of a config.json, with its key; NotFound if no encoder of the width is known, names the key.
absl::StatusOr<EncoderOptions> find_encoder_options(const config::EncoderSection& encoder,
                                                    const models::FluxSpec& spec);

}  // namespace titan::encoders
