// Runs Qwen3-VL forward and backward, for qwen3_vl_model_oracle_test.py:
//   run_qwen3_vl FOLDER...
// Each FOLDER has config.json and weights of transformers, job.json {"float64": bool}, and data/inputs.safetensors with
// "tokens" and "labels" [B, T], "images_of_row" [B], "grids" [n, 2] in patches and "patches" [P, values]. Without
// images "grids" is empty, and the tower runs on a placeholder. FOLDER/results.safetensors gets "positions" [3, B, T],
// "logits", "loss", the sum over all labels, and the gradient of each parameter as "grad.KEY" in the layout of the
// weights;
// ".0" and ".1" are the halves of a tensor that holds two parameters. The weights are exported to FOLDER/exported.
//   run_qwen3_vl places FOLDER: only the positions of FOLDER/inputs.safetensors with "0.tokens", "0.grids" ..., or why
//   there are none, as a line of output for each.

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "common/plan/hf_config/qwen3_vl.h"
#include "nlohmann/json.hpp"
#include "tests/numerics/safetensors.h"
#include "tests/worker/rank/model/hf_weights.h"
#include "worker/rank/model/qwen3_vl/inputs.h"
#include "worker/rank/model/qwen3_vl/qwen3_vl.h"
#include "worker/rank/model/vision/qwen3_vl.h"

namespace {

using namespace titan;
using namespace titan::testing;
using model::qwen3_vl::RowImages;
using Tensors = std::map<std::string, at::Tensor>;

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

RowImages images_of(const Tensors& inputs, const std::string& prefix = "") {
  RowImages images;
  const at::Tensor grids = inputs.at(prefix + "grids"), counts = inputs.at(prefix + "images_of_row");
  for (int64_t i = 0; i < grids.size(0); ++i)
    images.grids.push_back({grids[i][0].item<int64_t>(), grids[i][1].item<int64_t>()});
  for (int64_t row = 0; row < counts.size(0); ++row) images.images_of_row.push_back(counts[row].item<int64_t>());
  return images;
}

// Returns the images for the tower, or one square of patches that no token uses.
std::pair<at::Tensor, std::vector<models::PatchGrid>> patches_of(const Tensors& inputs, const RowImages& images,
                                                                 const models::Qwen3VlVisionSpec& vision) {
  if (!images.grids.empty()) return {inputs.at("patches").unsqueeze(0), images.grids};
  const int64_t merge = vision.merge;
  return {at::ones({1, merge * merge, vision.patch_values()}, at::kDouble), {{merge, merge}}};
}

void run(const std::string& folder) {
  const hf_config::HfQwen3Vl read = need(hf_config::read_qwen3_vl(read_json(folder + "/config.json")));
  const at::ScalarType type = read_json(folder + "/job.json").at("float64") ? at::kDouble : at::kFloat;
  const Tensors inputs = read_safetensors(folder + "/data/inputs.safetensors");
  const RowImages images = images_of(inputs);
  const auto [patches, grids] = patches_of(inputs, images, read.vl.vision);
  const model::Model model = need(model::qwen3_vl::build_model(read.text, read.vl, {}));
  const auto mapper = model::qwen3_vl::make_mapper(read.text, read.vl);
  load_hf_weights(model.blocks, folder, *mapper, type);
  nn::MicrobatchContext context{.tokens = inputs.at("tokens"), .labels = inputs.at("labels")};
  context.tensors[model::qwen3_vl::kPatches] = patches;
  context.extension =
      std::make_shared<model::Qwen3VlImages>(model::pack_qwen3_vl_images(grids, read.vl.vision, at::kCPU, type));
  need(model::qwen3_vl::add_places(read.text, read.vl, context.tokens, images, type, context));
  at::Tensor x = model.input(context);
  std::vector<nn::Parameter*> parameters;
  std::vector<at::Tensor> leaves;
  for (const auto& block : model.blocks) {
    block->init_buffers(at::kCPU, type);
    x = block->forward(x, context);
    for (nn::Parameter& parameter : block->parameters()) {
      parameters.push_back(&parameter);
      leaves.push_back(parameter.weight);
    }
  }
  const at::Tensor loss = model.loss(x, context.labels);
  const auto gradients = torch::autograd::grad({loss}, leaves);
  std::vector<checkpoint::Staged> parts{
      part_of("logits", x.detach()), part_of("loss", loss.detach().view({1})),
      part_of("positions", need(model::qwen3_vl::rope_positions(context.tokens, images, read.vl)))};
  for (size_t i = 0; i < leaves.size(); ++i) {
    const checkpoint::HfLayout layout = need(mapper->layouts(parameters[i]->fqn)).at(0);
    std::string key = "grad." + layout.keys.at(0);
    if (layout.parts > 1) key += "." + std::to_string(layout.part);
    parts.push_back(part_of(key, checkpoint::to_hf(layout, gradients[i]).at(0)));
  }
  need(checkpoint::write_tensors(storage::posix_files(), folder + "/data", "results.safetensors", parts));
  export_hf_weights(model.blocks, *mapper, folder);
}

void place(const std::string& folder) {
  const Tensors inputs = read_safetensors(folder + "/inputs.safetensors");
  const nlohmann::json job = read_json(folder + "/job.json");
  models::Qwen3VlSpec spec;
  spec.vision.merge = job.at("merge");
  spec.image_token = job.at("image_token"), spec.video_token = job.at("video_token");
  std::vector<checkpoint::Staged> parts;
  for (int64_t i = 0; inputs.contains(std::to_string(i) + ".tokens"); ++i) {
    const std::string prefix = std::to_string(i) + ".";
    const auto positions =
        model::qwen3_vl::rope_positions(inputs.at(prefix + "tokens"), images_of(inputs, prefix), spec);
    std::cout << positions.status() << "\n";
    if (positions.ok()) parts.push_back(part_of(std::to_string(i), *positions));
  }
  need(checkpoint::write_tensors(storage::posix_files(), folder, "results.safetensors", parts));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  at::set_num_threads(1);
  try {
    if (arguments.size() == 2 && arguments[0] == "places") {
      place(arguments[1]);
    } else {
      for (const std::string& folder : arguments) run(folder);
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
