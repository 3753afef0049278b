#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/nn/moe.h"

namespace titan::parallel {

// How many of one step's tokens, over all ranks, chose each expert of a layer.
struct ExpertLoad {
  std::string layer;  // "layers.3"
  std::vector<int64_t> tokens;

  // Of the most popular expert, over the mean: 1 when all have the same; what the slowest rank waits for.
  double max_over_mean() const;
  // Of the shares, over its highest value: 1 when all have the same, 0 when one has all.
  double entropy() const;
  int64_t idle() const;  // Experts without a token.
};

// Balances experts without an auxiliary loss (arXiv 2408.15664): before each optimizer step, an expert that got more
// tokens than the mean of its layer becomes less likely to be chosen, the others more.
class ExpertBalance {
 public:
  // `coefficient`: by how much a bias moves in a step (load_balance_coeff); 0: counts only. The blocks of all pipeline
  // stages of this rank; blocks and mesh must outlive it. `device`: the mesh's, also where this rank has no experts.
  ExpertBalance(const std::vector<nn::Block*>& blocks, double coefficient, const comm::DeviceMesh& mesh,
                at::Device device);

  // Of the steps from now on; the same on every rank.
  void set_coefficient(double coefficient) { coefficient_ = coefficient; }

  // Once a step, on all ranks, when the step's microbatches are done: sums the layers' counts over all ranks of their
  // stages, moves the biases and starts counting anew. Collectives: one all_reduce of 8 bytes an expert of every layer
  // here over the loss axis, and the same over the tensor axis where tensor ranks route different tokens. Equal bits on
  // every rank. `skip`: a scalar on the biases' device, 1 where the step is skipped and no bias moves, else 0;
  // undefined: 0.
  void finish_step(const at::Tensor& skip = {});

  // The last finished step's counts, of all layers of the model in order: one all_reduce over the pipeline, of 8 bytes
  // an expert of every layer, for all ranks of the stages together. `layers`: how many the model has.
  std::vector<ExpertLoad> loads(int64_t layers, int64_t experts) const;

 private:
  std::vector<nn::MixtureOfExperts*> mixtures_;
  double coefficient_;
  const comm::DeviceMesh& mesh_;
  const at::Device device_;
  at::Tensor counts_;  // int64 [layers here, experts]: of the last finished step.
};

// What a log step shows of them, as named figures: "moe/max_over_mean" and "moe/entropy" of the worst layer,
// "moe/idle_experts" of all, and the first two for each layer: "moe/layers.3/entropy".
std::vector<std::pair<std::string, double>> balance_figures(const std::vector<ExpertLoad>& loads);

}  // namespace titan::parallel
