#include "common/plan/models/repository.h"

#include "absl/strings/str_cat.h"

namespace titan::models {
namespace {

struct Row {
  const char *name, *flavor, *repository;
};

constexpr Row kRows[] = {
    {"llama3", "1B", "meta-llama/Llama-3.2-1B"},
    {"llama3", "3B", "meta-llama/Llama-3.2-3B"},
    {"llama3", "8B", "meta-llama/Llama-3.1-8B"},
    {"llama3", "70B", "meta-llama/Llama-3.1-70B"},
    {"llama3", "405B", "meta-llama/Llama-3.1-405B"},
    {"llama4", "17bx16e", "meta-llama/Llama-4-Scout-17B-16E"},
    {"llama4", "17bx128e", "meta-llama/Llama-4-Maverick-17B-128E"},
    {"deepseek_v3", "16B", "deepseek-ai/DeepSeek-V2-Lite"},
    {"deepseek_v3", "236B", "deepseek-ai/DeepSeek-V2"},
    {"deepseek_v3", "671B", "deepseek-ai/DeepSeek-V3.1-Base"},
    {"flux", "flux-dev", "black-forest-labs/FLUX.1-dev"},
    {"flux", "flux-schnell", "black-forest-labs/FLUX.1-schnell"},
    {"qwen3", "0.6B", "Qwen/Qwen3-0.6B"},
    {"qwen3", "1.7B", "Qwen/Qwen3-1.7B"},
    {"qwen3", "4B", "Qwen/Qwen3-4B"},
    {"qwen3", "8B", "Qwen/Qwen3-8B"},
    {"qwen3", "14B", "Qwen/Qwen3-14B"},
    {"qwen3", "32B", "Qwen/Qwen3-32B"},
    {"qwen3", "30B-A3B", "Qwen/Qwen3-30B-A3B"},
    {"qwen3", "235B-A22B", "Qwen/Qwen3-235B-A22B"},
    {"qwen3_vl", "2B", "Qwen/Qwen3-VL-2B-Instruct"},
    {"qwen3_vl", "4B", "Qwen/Qwen3-VL-4B-Instruct"},
    {"qwen3_vl", "8B", "Qwen/Qwen3-VL-8B-Instruct"},
    {"mistral", "7B", "mistralai/Mistral-7B-v0.3"},
    {"mistral", "12B", "mistralai/Mistral-Nemo-Base-2407"},
    {"mistral", "24B", "mistralai/Mistral-Small-24B-Base-2501"},
    {"mixtral", "8x7B", "mistralai/Mixtral-8x7B-v0.1"},
    {"mixtral", "8x22B", "mistralai/Mixtral-8x22B-v0.1"},
    {"qwen2", "0.5B", "Qwen/Qwen2.5-0.5B"},
    {"qwen2", "1.5B", "Qwen/Qwen2.5-1.5B"},
    {"qwen2", "3B", "Qwen/Qwen2.5-3B"},
    {"qwen2", "7B", "Qwen/Qwen2.5-7B"},
    {"qwen2", "14B", "Qwen/Qwen2.5-14B"},
    {"qwen2", "32B", "Qwen/Qwen2.5-32B"},
    {"qwen2", "72B", "Qwen/Qwen2.5-72B"},
    {"smollm3", "3B", "HuggingFaceTB/SmolLM3-3B-Base"},
    {"phi3", "mini-4k", "microsoft/Phi-3-mini-4k-instruct"},
    {"phi3", "medium-4k", "microsoft/Phi-3-medium-4k-instruct"},
    {"phi3", "phi-4", "microsoft/phi-4"},
    {"olmo2", "1B", "allenai/OLMo-2-0425-1B"},
    {"olmo2", "7B", "allenai/OLMo-2-1124-7B"},
    {"olmo2", "13B", "allenai/OLMo-2-1124-13B"},
    {"olmo2", "32B", "allenai/OLMo-2-0325-32B"},
    {"glm4", "9B", "THUDM/GLM-4-9B-0414"},
    {"gemma2", "2B", "google/gemma-2-2b"},
    {"gemma2", "9B", "google/gemma-2-9b"},
    {"gemma2", "27B", "google/gemma-2-27b"},
    {"gemma3", "270M", "google/gemma-3-270m"},
    {"gemma3", "1B", "google/gemma-3-1b-pt"},
    {"gemma3", "4B", "google/gemma-3-4b-pt"},
    {"gemma3", "12B", "google/gemma-3-12b-pt"},
    {"gemma3", "27B", "google/gemma-3-27b-pt"},
    {"granite", "2B", "ibm-granite/granite-3.1-2b-instruct"},
    {"granite", "8B", "ibm-granite/granite-3.1-8b-instruct"},
    {"gpt_oss", "20b", "openai/gpt-oss-20b"},
    {"gpt_oss", "120b", "openai/gpt-oss-120b"},
};

}  // namespace

std::string repository(const std::string& name, const std::string& flavor) {
  const std::string size = flavor.substr(0, flavor.find('_'));  // Variants such as "8B_flex" have the same weights.
  for (const Row& row : kRows) {
    if (row.name == name && row.flavor == size) return row.repository;
  }
  return "";
}

std::string tokenizer_advice(const std::string& name, const std::string& flavor) {
  const std::string known = repository(name, flavor);
  return absl::StrCat("`titanctl assets get ", known.empty() ? "ORG/NAME" : known,
                      " --assets tokenizer` downloads one");
}

}  // namespace titan::models
