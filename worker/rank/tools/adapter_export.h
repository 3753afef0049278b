#pragma once

// Steps of a job with model.converters = ["lora"], which hold adapters without their model.

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

// Returns whether a step holds adapters without their model.
bool holds_adapters(const checkpoint::Manifest& manifest);

// Returns the model below a step's adapters: `choice` or, if that is empty, the model that the step's job used.
// InvalidArgument if the step does not record it.
absl::StatusOr<std::string> base_model_path(const std::string& step, const checkpoint::Manifest& manifest,
                                            const std::string& choice);

// Writes the adapters in the PEFT library's form: adapter_model.safetensors, adapter_config.json and the tokenizer's
// files, into the new folder `folder`. `base`: name or path of the model for the folder's readers; may be empty.
// Returns warnings. Unimplemented if Hugging Face weights have no separate matrix for an adapted layer.
absl::StatusOr<std::vector<std::string>> write_peft(storage::Files& files, checkpoint::StepReader& step,
                                                    const checkpoint::HfMapper& mapper, const models::ModelSpec& spec,
                                                    const checkpoint::HfExport& options, const std::string& base,
                                                    const std::string& folder);

// Returns what the step's adapter adds to parameter `fqn`: alpha / rank * B A, float32 of `shape`. Undefined if it has
// no adapter.
absl::StatusOr<at::Tensor> adapter_delta(checkpoint::StepReader& step, const std::string& fqn,
                                         const std::vector<int64_t>& shape);

// Returns `weight`, the whole parameter `fqn`, with its adapter added: W + alpha / rank * B A, float32 of the same
// shape. Without an adapter it is `weight` itself.
absl::StatusOr<at::Tensor> with_adapter(checkpoint::StepReader& step, const std::string& fqn, const at::Tensor& weight);

}  // namespace titan::tools
