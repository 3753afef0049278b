// Runs a vision-language model in both passes, for vlm_oracle_test.py.
//   run_vlm FLAVOR FOLDER: reads weights.safetensors under Titan's names and inputs.safetensors, a batch by the names
//   of its tensors, in which token 1 stands for an image. Writes the sum of the loss terms to loss.bin, and the
//   gradient of each parameter to FQN.bin.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "common/plan/models/registry.h"
#include "tests/numerics/safetensors.h"
#include "worker/rank/model/objective.h"
#include "worker/rank/model/registry.h"

namespace titan {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

template <typename T>
T value_of(absl::StatusOr<T> result) {
  TORCH_CHECK(result.ok(), result.status().ToString());
  return *std::move(result);
}

void write(const std::string& path, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(dense.const_data_ptr()), static_cast<std::streamsize>(dense.nbytes()));
}

void run(const std::string& flavor, const std::string& folder) {
  const models::ModelSpec spec = value_of(models::find("vlm", flavor));
  data::Batch batch;
  for (const auto& [name, tensor] : testing::read_safetensors(folder + "/inputs.safetensors")) batch[name] = tensor;
  const model::Microbatch rows = model::make_objective(spec)->microbatch(batch, {});
  model::Model model = value_of(model::build(spec, {.seq_len = rows.context.tokens.size(1)}));
  Tensors weights = testing::read_safetensors(folder + "/weights.safetensors");
  std::vector<std::string> names;
  std::vector<at::Tensor> leaves;
  for (const auto& block : model.blocks) {
    for (nn::Parameter& parameter : block->parameters()) {
      TORCH_CHECK(weights.contains(parameter.fqn), "no tensor ", parameter.fqn);
      parameter.weight = weights[parameter.fqn].clone().requires_grad_();
      TORCH_CHECK(parameter.weight.sizes() == parameter.shape, parameter.fqn, ": ", parameter.weight.sizes());
      names.push_back(parameter.fqn);
      leaves.push_back(parameter.weight);
    }
    block->init_buffers(at::kCPU, leaves.front().scalar_type());
  }
  TORCH_CHECK(names.size() == weights.size(), weights.size(), " weights for ", names.size(), " parameters");
  at::Tensor x = model.input(rows.context);
  for (const auto& block : model.blocks) x = block->forward(x, rows.context);
  const at::Tensor loss = model.loss(x, rows.context);
  const auto gradients = torch::autograd::grad({loss}, leaves);
  write(folder + "/loss.bin", loss.detach().to(at::kDouble));
  for (size_t i = 0; i < names.size(); ++i) write(folder + "/" + names[i] + ".bin", gradients[i]);
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: run_vlm FLAVOR FOLDER\n";
    return 2;
  }
  titan::run(argv[1], argv[2]);
  return 0;
}
