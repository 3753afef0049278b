#pragma once

#include <vector>

#include "common/models/model_spec.h"

// The tables behind the registry: one function and one file per family.
namespace titan::models {

std::vector<ModelSpec> llama3_flavors();
std::vector<ModelSpec> llama4_flavors();
std::vector<ModelSpec> deepseek_v3_flavors();
std::vector<ModelSpec> qwen3_flavors();
std::vector<ModelSpec> gpt_oss_flavors();

}  // namespace titan::models
