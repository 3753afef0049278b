// A model library (docs/howto/add-a-model.md) with debug models in several sizes, for cost_table.py:
//   sized_llama3: layers_2, layers_4, ... layers_16; sized_deepseek_v3: experts_8, experts_16, ... experts_64
// For speed_table.py it also has Llama 3 with its released vocabulary, sized_llama3: vocabulary_128256.
#include <string>
#include <vector>

#include "common/plan/models/registry.h"
#include "worker/rank/model/families.h"
#include "worker/rank/model/plugin.h"

namespace {

using namespace titan;

std::vector<models::ModelSpec> in_sizes(const std::string& family, const char* of, int64_t first, int64_t last,
                                        int64_t& (*size)(models::ModelSpec&)) {
  std::vector<models::ModelSpec> flavors;
  for (int64_t count = first; count <= last; count *= 2) {
    models::ModelSpec spec = models::find(family, "debugmodel").value();
    spec.flavor = of + std::to_string(count);
    size(spec) = count;
    flavors.push_back(spec);
  }
  return flavors;
}

std::vector<model::PluginFamily> families() {
  model::PluginFamily layers{.name = "sized_llama3",
                             .flavors = in_sizes("llama3", "layers_", 2, 16,
                                                 [](models::ModelSpec& spec) -> int64_t& { return spec.n_layers; }),
                             .build = model::llama3::build,
                             .hf = model::llama3::hf()};
  models::ModelSpec vocabulary = models::find("llama3", "debugmodel").value();
  vocabulary.flavor = "vocabulary_128256";
  vocabulary.vocab_size = 128256;
  layers.flavors.push_back(vocabulary);
  model::PluginFamily experts{
      .name = "sized_deepseek_v3",
      .flavors = in_sizes("deepseek_v3", "experts_", 8, 64,
                          [](models::ModelSpec& spec) -> int64_t& { return spec.moe->num_experts; }),
      .build = model::deepseek_v3::build};
  return {layers, experts};
}

}  // namespace

TITAN_MODEL_PLUGIN(families)
