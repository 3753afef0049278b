#include "controller/cli/stage_figures.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plan/memory/blocks.h"
#include "common/plan/models/activations.h"
#include "common/plan/models/sizes.h"

namespace titan::cli {
namespace {

// Of one token's forward pass; the factor cancels.
std::map<std::string, double> flops_of_blocks(const models::ModelSpec& spec, std::int64_t seq_len) {
  std::map<std::string, double> flops;
  for (const models::BlockSize& block : models::block_sizes(spec)) {
    flops[block.name] = static_cast<double>(block.active_params);
    if (block.name.rfind("layers.", 0) == 0)
      flops[block.name] += static_cast<double>(spec.n_heads * (spec.head_dim + spec.v_head_dim) * seq_len);
    if (block.name == "output" && spec.tied_embeddings)
      flops[block.name] += static_cast<double>(spec.vocab_size * spec.dim);
  }
  return flops;
}

std::string explain(const config::JobConfig& config) {
  const config::ActivationCheckpoint& ac = config.activation_checkpoint;
  return absl::StrCat("memory: activations that wait for their backward pass (", ac.mode,
                      !ac.layers.empty()       ? absl::StrCat(" of layers ", absl::StrJoin(ac.layers, ", "))
                      : ac.mode == "selective" ? absl::StrCat(" ", ac.selective_ac_option)
                                               : "",
                      " recomputation), estimated; weights, gradients, optimizer and temporaries come on top: "
                      "titan-rank --comm.mode fake_backend counts all");
}

// Of a layer, "layers.7", which is the `number`th of its rank.
std::int64_t kept_of(const models::BlockActivations& block, const config::ActivationCheckpoint& ac,
                     const std::string& name, int number) {
  std::int64_t index = 0;
  (void)absl::SimpleAtoi(name.substr(name.find('.') + 1), &index);
  return memory::kept_bytes(block, ac, {.number = number, .index = index});
}

}  // namespace

StageFigures stage_figures(const config::JobConfig& config, const models::ModelSpec& spec, const pipeline::Plan& plan) {
  const std::vector<models::BlockActivations> blocks =
      models::block_activations(spec, memory::activation_shape(config));
  std::map<std::string, double> flops = flops_of_blocks(spec, config.training.seq_len);
  StageFigures figures{.bytes = {}, .scale = {}, .explanation = explain(config)};
  const config::ActivationCheckpoint& ac = config.activation_checkpoint;
  figures.recomputed = memory::recomputed_share(ac, spec.n_layers);
  std::map<int, int> layers;  // Met so far, by rank.
  std::size_t block = 0;
  for (std::size_t stage = 0; stage < plan.split.size(); ++stage) {
    std::int64_t bytes = 0;
    double work = 0;
    int& layer = layers[plan.schedule.rank_of(static_cast<int>(stage))];
    for (const std::string& name : plan.split[stage]) {
      const bool first = block == 0, last = name == "output";
      bytes += blocks[block].input;
      bytes += first || last ? blocks[block].graph : kept_of(blocks[block], ac, name, ++layer);
      work += flops[name];
      ++block;
    }
    figures.bytes.push_back(bytes);
    figures.scale.push_back(work);
  }
  const double mean = std::accumulate(figures.scale.begin(), figures.scale.end(), 0.0) /
                      static_cast<double>(std::max<std::size_t>(figures.scale.size(), 1));
  for (double& scale : figures.scale) scale /= mean > 0 ? mean : 1;
  return figures;
}

}  // namespace titan::cli
