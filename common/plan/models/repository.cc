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
