// Runs Flux forward and backward with the weights of a folder, for flux_oracle_test.py, and exports the weights:
//   run_flux FOLDER INPUTS TYPE NAMES OUT
// FOLDER: weights and config.json of diffusers. INPUTS: a safetensors file with the microbatch's tensors and
// "grad_out", the gradient of the prediction. TYPE: fp64 or fp32. NAMES: diffusers or released, the names in
// OUT/exported. OUT/results.safetensors gets "prediction", "grad.NAME" for each parameter, and "grad_input.NAME" for
// the latents, the text and its vector.

#include <torch/csrc/autograd/autograd.h>

#include <iostream>

#include "tests/numerics/safetensors.h"
#include "tests/worker/rank/model/flux/flux_folder.h"
#include "tests/worker/rank/model/hf_weights.h"
#include "worker/rank/model/flux/blocks.h"

namespace {

using namespace titan;
using namespace titan::checkpoint;
using namespace titan::model;

using namespace titan::testing;

void run(const std::string& folder, const std::string& inputs_path, at::ScalarType type, flux::WeightNames names,
         const std::string& out) {
  const models::FluxSpec spec = read_flux_spec(folder);
  const auto blocks = need(flux::build_blocks(spec));
  load_flux(blocks, spec, folder, type);
  std::map<std::string, at::Tensor> tensors = titan::testing::read_safetensors(inputs_path);
  std::vector<std::string> leaf_names;
  std::vector<at::Tensor> leaves;
  const auto add_leaf = [&](const std::string& name, const at::Tensor& leaf) {
    leaf_names.push_back(name);
    leaves.push_back(leaf);
  };
  for (const char* name : {flux::kLatents, flux::kTxt, flux::kPooled}) {
    tensors.at(name) = tensors.at(name).to(type).requires_grad_();
    add_leaf(std::string("grad_input.") + name, tensors.at(name));
  }
  const flux::FluxInputs inputs = flux::flux_inputs(tensors);
  at::Tensor x = tensors.at(flux::kLatents);
  for (const auto& block : blocks) {
    x = dynamic_cast<flux::FluxBlock&>(*block).run(x, inputs);
    for (const nn::Parameter& parameter : block->parameters()) add_leaf("grad." + parameter.fqn, parameter.weight);
  }
  const auto gradients = torch::autograd::grad({x}, leaves, {tensors.at("grad_out").to(type)});
  std::vector<Staged> parts{part_of("prediction", x.detach())};
  for (size_t i = 0; i < leaves.size(); ++i) parts.push_back(part_of(leaf_names[i], gradients[i]));
  need(storage::posix_files().make_folders(out));
  need(write_tensors(storage::posix_files(), out, "results.safetensors", parts));
  export_hf_weights(blocks, *flux::make_mapper(spec, names), out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: run_flux FOLDER INPUTS TYPE NAMES OUT\n";
    return 2;
  }
  const std::string type = argv[3], names = argv[4];
  try {
    run(argv[1], argv[2], type == "fp64" ? at::kDouble : at::kFloat,
        names == "released" ? flux::WeightNames::kReleased : flux::WeightNames::kDiffusers, argv[5]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
