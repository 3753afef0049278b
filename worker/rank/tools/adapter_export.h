#pragma once

// Steps of a job with model.converters = ["lora"]: adapters without the model that they belong to.

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_export.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/step_reader.h"

namespace titan::tools {

bool holds_adapters(const checkpoint::Manifest& manifest);

// The model beneath a step's adapters: `choice`, or where the step's job had it from when that is empty.
// InvalidArgument when the step does not say.
absl::StatusOr<std::string> base_of(const std::string& step, const checkpoint::Manifest& manifest,
                                    const std::string& choice);

// The adapters in the form of the PEFT library: adapter_model.safetensors, adapter_config.json and the tokenizer's
// files in the new folder `folder`. `base`: the model's name or path for those who open them; may be empty. Returns
// warnings. Unimplemented: a layer that Hugging Face keeps together with others.
absl::StatusOr<std::vector<std::string>> write_peft(storage::Files& files, checkpoint::StepReader& step,
                                                    const checkpoint::HfMapper& mapper, const models::ModelSpec& spec,
                                                    const checkpoint::HfExport& options, const std::string& base,
                                                    const std::string& folder);

// What the step's adapter of parameter `fqn` adds to it: alpha / rank * B A, in float32. Undefined: it has none.
absl::StatusOr<at::Tensor> adapter_delta(checkpoint::StepReader& step, const std::string& fqn,
                                         const std::vector<int64_t>& shape);

// The parameter `fqn` of the model with what its adapter, if it has one, adds: W + alpha / rank * B A, in float32.
absl::StatusOr<at::Tensor> with_adapter(checkpoint::StepReader& step, const std::string& fqn, const at::Tensor& weight);

}  // namespace titan::tools
