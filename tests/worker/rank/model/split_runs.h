#pragma once

#include <map>
#include <string>

#include "common/plan/mesh/mesh.h"
#include "tests/worker/rank/model/reference_model.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/parallel/context_load_balance.h"

// Runs forward, loss and backward of one model on threads as ranks of a mesh, and adds up what they compute.
namespace titan::testing {

// A model with values and one batch of whole rows, in float64.
struct Task {
  models::ModelSpec spec;
  Weights weights;
  nn::MicrobatchContext batch;
};

struct Totals {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  // Gradients of whole parameters.
};

struct Split {
  std::string what;
  mesh::Degrees degrees;
  int world;
  bool sequence = true, loss_parallel = true, async = false;
  std::string rotate = "allgather";
  parallel::LoadBalance balance = parallel::LoadBalance::kHeadTail;
  int64_t max_logit_bytes = 0;  // BuildOptions::max_logit_bytes.
};

// Draws weights and a batch of 4 rows of 24 tokens.
Task draw_task(const models::ModelSpec& spec, uint64_t seed);

Totals run_whole(const Task& task);
Totals run_split(const Task& task, const Split& split);

// Expects the same loss and gradients, with relative errors below 1e-12 and 1e-10. Gradients that are rounding, because
// a parameter does not change the loss, are compared with the size of the others.
void expect_same(const Totals& got, const Totals& want);

}  // namespace titan::testing
