// Runs a vision tower in both passes, for vision_oracle_test.py and qwen3_vl_oracle_test.py.
//   run_vision_tower count FOLDER: prints the number of the encoder's parameters by FOLDER/config.json.
//   run_vision_tower siglip2 FOLDER: reads config.json, job.json {"grids", "out_dim"}, weights.safetensors under
//   Hugging Face's names, and inputs.safetensors with "patches" [P, values] and "grad", which is like the result.
//   Writes the result to output.bin, and the gradient of each parameter to FQN.bin. run_vision_tower qwen3_vl FOLDER:
//   the same with the spec's numbers in job.json, and weights under Titan's names.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "common/plan/hf_config/vision.h"
#include "common/plan/models/vision.h"
#include "nlohmann/json.hpp"
#include "tests/numerics/safetensors.h"
#include "worker/rank/model/vision/hf_names.h"
#include "worker/rank/model/vision/qwen3_vl.h"
#include "worker/rank/model/vision/siglip2.h"

namespace titan {
namespace {

using Blocks = std::vector<std::unique_ptr<nn::Block>>;
using Tensors = std::map<std::string, at::Tensor>;

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

void write(const std::string& path, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(dense.const_data_ptr()), static_cast<std::streamsize>(dense.nbytes()));
}

template <typename T>
T value_of(absl::StatusOr<T> result) {
  TORCH_CHECK(result.ok(), result.status().ToString());
  return *std::move(result);
}

std::vector<models::PatchGrid> grids_of(const nlohmann::json& job) {
  std::vector<models::PatchGrid> grids;
  for (const nlohmann::json& grid : job.at("grids")) grids.push_back({grid[0], grid[1]});
  return grids;
}

// Gives every parameter its tensor, and returns the parameters. Throws unless there are exactly their tensors.
std::vector<nn::Parameter*> load(const Blocks& blocks, Tensors weights,
                                 const std::function<std::string(const std::string&)>& key_of) {
  std::vector<nn::Parameter*> parameters;
  for (const auto& block : blocks) {
    for (nn::Parameter& parameter : block->parameters()) {
      const std::string key = key_of(parameter.fqn);
      TORCH_CHECK(weights.contains(key), "no tensor ", key);
      const at::Tensor& value = weights[key];
      TORCH_CHECK(value.sizes() == parameter.shape, key, " has the shape ", value.sizes());
      parameter.weight = value.clone().requires_grad_();
      weights.erase(key);
      parameters.push_back(&parameter);
    }
  }
  TORCH_CHECK(weights.empty(), "unused tensor ", weights.begin()->first);
  return parameters;
}

void run(const std::string& folder, const Blocks& blocks,
         const std::function<std::string(const std::string&)>& key_of) {
  const std::vector<nn::Parameter*> parameters =
      load(blocks, testing::read_safetensors(folder + "/weights.safetensors"), key_of);
  const Tensors inputs = testing::read_safetensors(folder + "/inputs.safetensors");
  at::Tensor x = inputs.at("patches").unsqueeze(0);
  for (const auto& block : blocks) x = block->forward(x, {});
  std::vector<at::Tensor> leaves;
  for (const nn::Parameter* parameter : parameters) leaves.push_back(parameter->weight);
  const auto gradients = torch::autograd::grad({x}, leaves, {inputs.at("grad").unsqueeze(0)});
  write(folder + "/output.bin", x);
  for (size_t i = 0; i < gradients.size(); ++i) write(folder + "/" + parameters[i]->fqn + ".bin", gradients[i]);
}

models::VisionSpec siglip2_spec(const std::string& folder) {
  return value_of(hf_config::read_vision(read_json(folder + "/config.json"))).spec;
}

void run_siglip2(const std::string& folder) {
  const nlohmann::json job = read_json(folder + "/job.json");
  models::VisionSpec spec = siglip2_spec(folder);
  spec.out_dim = job.at("out_dim");
  const model::Images images = model::pack_images(grids_of(job));
  const auto images_of = [&](const nn::MicrobatchContext&) -> const model::Images& { return images; };
  const auto mapper = model::make_vision_hf_mapper(spec);
  run(folder, value_of(model::build_vision_tower(spec, images_of)),
      [&](const std::string& fqn) { return value_of(mapper->layouts(fqn)).front().keys[0]; });
}

void run_qwen3_vl(const std::string& folder) {
  const nlohmann::json job = read_json(folder + "/job.json");
  const models::Qwen3VlVisionSpec spec{.dim = job.at("dim"),
                                       .ffn_hidden = job.at("ffn_hidden"),
                                       .n_layers = job.at("n_layers"),
                                       .n_heads = job.at("n_heads"),
                                       .channels = job.at("channels"),
                                       .patch_size = job.at("patch_size"),
                                       .temporal_patch_size = job.at("temporal_patch_size"),
                                       .merge = job.at("merge"),
                                       .position_side = job.at("position_side"),
                                       .out_dim = job.at("out_dim"),
                                       .deepstack_layers = job.at("deepstack_layers")};
  const at::ScalarType type = job.at("float64") ? at::kDouble : at::kFloat;
  const model::Qwen3VlImages images = model::pack_qwen3_vl_images(grids_of(job), spec, at::kCPU, type);
  const auto images_of = [&](const nn::MicrobatchContext&) -> const model::Qwen3VlImages& { return images; };
  run(folder, value_of(model::build_qwen3_vl_vision(spec, images_of)), [](const std::string& fqn) { return fqn; });
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  const std::string mode = argc == 3 ? argv[1] : "";
  if (mode == "count") {
    std::cout << titan::models::parameter_count(titan::siglip2_spec(argv[2])) << "\n";
  } else if (mode == "siglip2") {
    titan::run_siglip2(argv[2]);
  } else if (mode == "qwen3_vl") {
    titan::run_qwen3_vl(argv[2]);
  } else {
    std::cerr << "usage: run_vision_tower count|siglip2|qwen3_vl FOLDER\n";
    return 2;
  }
  return 0;
}
