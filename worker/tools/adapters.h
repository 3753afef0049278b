#pragma once

// Steps of a job with model.converters = ["lora"]: adapters without the model that they belong to.

#include <ATen/ATen.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/models/model_spec.h"
#include "common/storage/file.h"
#include "worker/checkpoint/hf_mapper.h"
#include "worker/checkpoint/step_reader.h"

namespace titan::tools {

bool holds_adapters(const checkpoint::Manifest& manifest);

// The adapters in the form of the PEFT library: adapter_model.safetensors and adapter_config.json in the new folder
// `folder`. `base`: the model's name or path for whoever opens them; may be empty. Unimplemented: a layer that Hugging
// Face keeps together with others.
absl::Status write_peft(storage::Files& files, checkpoint::StepReader& step, const checkpoint::HfMapper& mapper,
                        const models::ModelSpec& spec, at::ScalarType dtype, const std::string& base,
                        const std::string& folder);

// The parameter `fqn` of the model with what its adapter, if it has one, adds: W + alpha / rank * B A, in float32.
absl::StatusOr<at::Tensor> with_adapter(checkpoint::StepReader& step, const std::string& fqn, const at::Tensor& weight);

}  // namespace titan::tools
