#pragma once

#include "absl/status/statusor.h"
#include "worker/model/model.h"

// GPT-OSS (arXiv 2508.10925): attention sinks, sliding windows on even layers, biases, clamped experts.
namespace titan::model::gpt_oss {

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options);

}  // namespace titan::model::gpt_oss
