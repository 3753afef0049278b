#pragma once

#include "absl/status/statusor.h"
#include "worker/model/model.h"

// Llama 3 (arXiv 2407.21783): grouped-query attention, neighbouring pairs rotated with stretched low frequencies.
namespace titan::model::llama {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options);

}  // namespace titan::model::llama
