// Prints, as one JSON line per flavor, the Hugging Face tensors of all models, for hf_names_oracle_test.py. Models are
// cut to their first LAYERS layers: later ones have nothing new.
//   list_hf_tensors LAYERS

#include <algorithm>
#include <iostream>
#include <map>

#include "common/plan/models/registry.h"
#include "common/plan/models/sizes.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/model/hf_names.h"

int main(int argc, char** argv) {
  using namespace titan;
  if (argc != 2) {
    std::cerr << "usage: list_hf_tensors LAYERS\n";
    return 2;
  }
  for (const std::string& name : models::names()) {
    for (const std::string& flavor : models::flavors(name)) {
      models::ModelSpec spec = *models::find(name, flavor);
      // transformers does not have these, or not as a causal language model; flux_oracle_test, vision_oracle_test and
      // qwen3_vl_model_oracle_test compare with what there is.
      if (spec.flux || spec.reads_images()) continue;
      spec.n_layers = std::min<int64_t>(spec.n_layers, std::atoll(argv[1]));
      const auto mapper = *model::make_hf_mapper(spec);
      nlohmann::json parameters, tensors = nlohmann::json::object(), float32 = nlohmann::json::object();
      const auto add = [&](const std::string& fqn, const std::vector<int64_t>& shape) {
        parameters[fqn] = shape;
        const auto layouts = *mapper->layouts(fqn);
        const checkpoint::HfLayout* layout = checkpoint::layout_to_write(layouts);
        if (layout == nullptr) return;
        for (const std::string& key : layout->keys) {
          tensors[key] = checkpoint::hf_shape(*layout, shape);
          for (const auto& [name, type] : {std::pair("float16", at::kHalf), {"bfloat16", at::kBFloat16}}) {
            if (checkpoint::stored_type(*layout, type) != type) float32[name].push_back(key);
          }
        }
      };
      for (const models::ParameterSpec& tensor : models::parameters(spec)) add(tensor.fqn, tensor.shape);
      for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
        if (!spec.layer_has_experts(layer)) continue;
        add("layers." + std::to_string(layer) + ".moe.expert_bias", {spec.moe->num_experts});
      }
      std::cout << nlohmann::json{{"name", name},
                                  {"flavor", flavor},
                                  {"layers", spec.n_layers},
                                  {"config", mapper->config()},
                                  {"parameters", parameters},
                                  {"tensors", tensors},
                                  {"float32", float32}}
                // float32: by the type of an export, the tensors that stay in float32.
                << "\n";
    }
  }
  return 0;
}
