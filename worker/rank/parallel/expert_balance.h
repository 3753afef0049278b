#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/nn/moe.h"

namespace titan::parallel {

// Number of tokens of one step, over all ranks, that chose each expert of a layer.
struct ExpertLoad {
  std::string layer;            // For example "layers.3".
  std::vector<int64_t> tokens;  // By expert.

  // Load of the most popular expert divided by the mean: 1 if all are equal. The slowest rank waits for it.
  double max_over_mean() const;
  // Entropy of the shares divided by its maximum: 1 if all are equal, 0 if one expert has all tokens.
  double entropy() const;
  int64_t idle() const;  // Number of experts without a token.
};

// Balances experts without an auxiliary loss (arXiv 2408.15664): before each optimizer step, an expert that got more
// tokens than the mean of its layer becomes less likely to be chosen, and the others more likely.
class ExpertBalance {
 public:
  // `blocks`: those of all pipeline stages of this rank. `coefficient`: how far a bias moves per step
  // (load_balance_coeff); 0: only count. Blocks and mesh must outlive this. `device`: the mesh's device, even if this
  // rank has no experts.
  ExpertBalance(const std::vector<nn::Block*>& blocks, double coefficient, const comm::DeviceMesh& mesh,
                at::Device device);

  // Applies to the following steps. It must be the same on every rank.
  void set_coefficient(double coefficient) { coefficient_ = coefficient; }

  // Call it once per step on all ranks, after the step's microbatches. Sums the layers' counts over all ranks of their
  // stages, moves the biases and resets the counts. Collectives: one all_reduce of 8 bytes per expert and local layer
  // over the loss axis, and the same over the tensor axis if tensor ranks route different tokens. The result has equal
  // bits on every rank. `skip`: a scalar on the biases' device, 1 if the step is skipped and no bias moves, else 0;
  // undefined: 0.
  void finish_step(const at::Tensor& skip = {});

  // Returns the last finished step's counts for all layers of the model, in order. Uses one all_reduce over the
  // pipeline, of 8 bytes per expert and layer, in which all ranks of the stages take part. `layers`: number of layers
  // of the model.
  std::vector<ExpertLoad> loads(int64_t layers, int64_t experts) const;

 private:
  std::vector<nn::MixtureOfExperts*> mixtures_;
  double coefficient_;
  const comm::DeviceMesh& mesh_;
  const at::Device device_;
  at::Tensor counts_;  // int64 [local layers, experts]: counts of the last finished step.
};

// Returns the named figures of a log step: "moe/max_over_mean" and "moe/entropy" of the worst layer, "moe/idle_experts"
// of all, and the first two of each layer, such as "moe/layers.3/entropy".
std::vector<std::pair<std::string, double>> balance_figures(const std::vector<ExpertLoad>& loads);

}  // namespace titan::parallel
