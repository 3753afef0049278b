#include "controller/cli/stage_figures.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/models/activations.h"
#include "common/models/sizes.h"

namespace titan::cli {
namespace {

models::ActivationShape shape_of(const config::JobConfig& config) {
  const config::Parallelism& p = config.parallelism;
  const std::int64_t rows =
      p.pipeline_parallel_degree > 1 ? p.pipeline_parallel_microbatch_size : config.training.local_batch_size;
  const std::string& type =
      config.training.dtype == "float64" ? config.training.dtype : config.training.mixed_precision_param;
  const std::int64_t element = type == "float64" ? 8 : type == "float32" ? 4 : 2;
  const bool deals_experts = p.expert_parallel_degree > 1;
  return {.tokens = rows * config.training.seq_len / p.context_parallel_degree,
          .tensor_ranks = p.tensor_parallel_degree,
          .sequence_parallel = p.enable_sequence_parallel,
          .loss_parallel = !p.disable_loss_parallel,
          .expert_tensor_ranks = deals_experts ? p.expert_tensor_parallel_degree : p.tensor_parallel_degree,
          .experts_elsewhere = deals_experts,
          .element_bytes = element,
          .fused_norms = config.resources.device == "cuda"};
}

// Every how many-th layer runs again as a whole; 0: none.
int whole_layers_again(const config::ActivationCheckpoint& ac) {
  if (ac.mode == "full") return 1;
  int every = 0;
  if (ac.mode != "selective" || ac.selective_ac_option == "op" || !absl::SimpleAtoi(ac.selective_ac_option, &every))
    return 0;
  return std::max(every, 1);  // 0 means all, too.
}

// `number`: of the layer on its rank, from 1.
std::int64_t bytes_of(const models::BlockActivations& block, const config::ActivationCheckpoint& ac, int number) {
  if (const int every = whole_layers_again(ac); every > 0) return block.input + (number % every == 0 ? 0 : block.graph);
  if (ac.mode == "memory_budget")
    return block.input + static_cast<std::int64_t>(ac.memory_budget * static_cast<double>(block.costly));
  return block.input + (ac.mode == "selective" && ac.selective_ac_option == "op" ? block.by_operation : block.graph);
}

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
                      ac.mode == "selective" ? absl::StrCat(" ", ac.selective_ac_option) : "",
                      " recomputation), estimated; weights, gradients, optimizer and temporaries come on top: "
                      "titan-rank --comm.mode fake_backend counts all");
}

}  // namespace

StageFigures stage_figures(const config::JobConfig& config, const models::ModelSpec& spec, const pipeline::Plan& plan) {
  const std::vector<models::BlockActivations> blocks = models::block_activations(spec, shape_of(config));
  std::map<std::string, double> flops = flops_of_blocks(spec, config.training.seq_len);
  StageFigures figures{.bytes = {}, .scale = {}, .explanation = explain(config)};
  if (const int every = whole_layers_again(config.activation_checkpoint); every > 0) figures.recomputed = 1.0 / every;
  std::map<int, int> layers;  // Met so far, by rank.
  std::size_t block = 0;
  for (std::size_t stage = 0; stage < plan.split.size(); ++stage) {
    std::int64_t bytes = 0;
    double work = 0;
    int& layer = layers[plan.schedule.rank_of(static_cast<int>(stage))];
    for (const std::string& name : plan.split[stage]) {
      const bool first = block == 0, last = name == "output";
      if (first || last) {
        bytes += blocks[block].input + blocks[block].graph;
      } else {
        bytes += bytes_of(blocks[block], config.activation_checkpoint, ++layer);
      }
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
