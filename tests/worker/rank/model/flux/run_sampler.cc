// Samples latents with the weights of a folder, for sampler_oracle_test.py:
//   run_sampler times             reads lines "STEPS TOKENS SHIFT" and prints the times of each, as JSON
//   run_sampler FOLDER INPUTS OUT
// FOLDER: weights and config.json of diffusers. INPUTS: a safetensors file with "noise" [B, C, h, w], "txt" and "y",
// "empty_txt" and "empty_y" of one row, "scale" [], and "times" [steps + 1], in the type to compute in (fp32 or fp64).
// OUT/latents.safetensors gets "plain" and "guided" [B, C, h, w], by one rank, and "plain.context" and
// "guided.context", by two context ranks.

#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <mutex>

#include "nlohmann/json.hpp"
#include "tests/numerics/safetensors.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/model/flux/flux_folder.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/model/flux/sampler.h"

namespace titan {
namespace {

using model::flux::Captions;

void print_times() {
  int steps = 0, shift = 0;
  int64_t tokens = 0;
  while (std::cin >> steps >> tokens >> shift)
    std::cout << nlohmann::json(model::flux::sampling_times(steps, tokens, shift != 0)).dump() << "\n";
}

using Tensors = std::map<std::string, at::Tensor>;

at::Tensor sample(const model::flux::Blocks& owned, const models::FluxSpec& spec, const Tensors& inputs, bool guided,
                  const comm::Group* context) {
  std::vector<nn::Block*> blocks;
  for (const auto& block : owned) blocks.push_back(block.get());
  const model::WholeModel whole{.visit =
                                    [&](at::Tensor x, const auto& run) {
                                      for (nn::Block* block : blocks) x = run(*block, x);
                                      return x;
                                    },
                                .blocks = blocks,
                                .device = at::kCPU};
  const at::Tensor times = inputs.at("times").to(at::kDouble);
  model::flux::SamplerOptions options{.times = {times.data_ptr<double>(), times.data_ptr<double>() + times.numel()},
                                      .scale = inputs.at("scale").item<double>(),
                                      .context = context};
  if (guided) options.empty = Captions{.txt = inputs.at("empty_txt"), .y = inputs.at("empty_y")};
  return sample_latents(whole, spec, inputs.at("noise"), {.txt = inputs.at("txt"), .y = inputs.at("y")}, options);
}

// Adds the latents of a mesh of `ranks` context ranks, which must be equal on all of them.
void sample_on(int ranks, const std::string& folder, const Tensors& inputs, Tensors& latents) {
  const models::FluxSpec spec = testing::read_flux_spec(folder);
  std::mutex mutex;
  testing::run_ranks({.cp = ranks}, ranks, testing::every_axis(), [&](testing::ThreadRank& self) {
    const model::flux::Blocks blocks = testing::need(model::flux::build_blocks(spec));
    testing::need(model::flux::parallelize(blocks, spec, {.mesh = self.mesh.get(), .rotate_method = "allgather"}));
    testing::load_flux(blocks, spec, folder, inputs.at("noise").scalar_type());
    const comm::Group& context = self.mesh->group(mesh::Axis::kContext);
    for (const bool guided : {false, true}) {
      const at::Tensor made = sample(blocks, spec, inputs, guided, &context);
      const std::lock_guard<std::mutex> lock(mutex);
      const auto [there, first] =
          latents.emplace(std::string(guided ? "guided" : "plain") + (ranks > 1 ? ".context" : ""), made);
      if (!first && !at::equal(there->second, made)) throw std::runtime_error("context ranks have other latents");
    }
  });
}

void run(const std::string& folder, const std::string& inputs_path, const std::string& out) {
  const Tensors inputs = testing::read_safetensors(inputs_path);
  Tensors latents;
  for (const int ranks : {1, 2}) sample_on(ranks, folder, inputs, latents);
  std::vector<checkpoint::Staged> parts;
  for (const auto& [name, value] : latents) {
    parts.push_back(
        {name, value.sizes().vec(), std::vector<int64_t>(static_cast<size_t>(value.dim())), value.contiguous()});
  }
  testing::need(storage::posix_files().make_folders(out));
  testing::need(write_tensors(storage::posix_files(), out, "latents.safetensors", parts));
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  try {
    if (argc == 2 && std::string(argv[1]) == "times") {
      titan::print_times();
    } else if (argc == 4) {
      titan::run(argv[1], argv[2], argv[3]);
    } else {
      std::cerr << "usage: run_sampler times | FOLDER INPUTS OUT\n";
      return 2;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return testing::Test::HasFailure() ? 1 : 0;
}
