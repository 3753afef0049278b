// Tests Flux split over tensor and context axes: the same prediction and gradients as on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/model/flux/small_flux.h"
#include "tests/worker/rank/model/testing.h"
#include "worker/rank/model/flux/flux.h"

namespace titan::testing {
namespace {

using mesh::Axis;
using model::flux::context_share;

struct Split {
  std::string what;
  mesh::Degrees degrees;
  int world;
  std::string rotate = "allgather";
  bool given_rotation = false;
};

struct Totals {
  FluxWeights gradients;  // Gradients of whole parameters.
  at::Tensor prediction, grad_latents, grad_txt;
};

constexpr int64_t kRows = 2, kTxt = 4, kImg = 12;

// Adds the part of one rank to the whole.
void add_rank(const FluxResults& results, const comm::Group& context, bool first_tensor_rank, Totals& totals) {
  for (size_t i = 0; i < results.parameters.size(); ++i) {
    const nn::Parameter& parameter = *results.parameters[i];
    if (!first_tensor_rank && parameter.on_tensor_axis == nn::TensorAxisPlacement::kReplicate) continue;
    at::Tensor& whole = totals.gradients[parameter.fqn];
    if (!whole.defined()) whole = at::zeros(parameter.global_shape, at::kDouble);
    part_of(whole, parameter).add_(results.gradients[i]);
  }
  if (!first_tensor_rank) return;
  context_share(totals.prediction, context).copy_(results.prediction);
  context_share(totals.grad_latents, context).copy_(results.grad_latents);
  context_share(totals.grad_txt, context).copy_(results.grad_txt);
}

Totals run_split(const models::FluxSpec& spec, const FluxWeights& weights, const FluxBatch& batch, const Split& split) {
  Totals totals{.gradients = {},
                .prediction = at::empty_like(batch.grad_out),
                .grad_latents = at::empty_like(batch.latents),
                .grad_txt = at::empty_like(batch.inputs.txt)};
  std::mutex mutex;
  run_ranks(split.degrees, split.world, every_axis(), [&](ThreadRank& self) {
    const model::flux::Blocks blocks = *model::flux::build_blocks(spec);
    const absl::Status done =
        model::flux::parallelize(blocks, spec, {.mesh = self.mesh.get(), .rotate_method = split.rotate});
    ASSERT_TRUE(done.ok()) << done;
    set_flux_weights(blocks, weights, at::kDouble);
    const comm::Group& context = self.mesh->group(Axis::kContext);
    FluxBatch share = batch;
    if (split.given_rotation) {
      share.inputs.rotation =
          model::flux::rotation_table(spec, batch.inputs.txt_ids, batch.inputs.img_ids, at::kDouble);
    }
    share.inputs = context_share(share.inputs, context);
    for (at::Tensor* tensor : {&share.latents, &share.grad_out}) *tensor = context_share(*tensor, context);
    const FluxResults results = train_flux(blocks, share, at::kDouble);
    const std::lock_guard<std::mutex> lock(mutex);
    add_rank(results, context, self.mesh->mesh().index(self.rank, Axis::kTensor) == 0, totals);
  });
  return totals;
}

TEST(FluxSplitTest, ComputesTheSameAsOneRank) {
  at::set_num_threads(1);
  at::manual_seed(1);
  const models::FluxSpec spec = small_flux();
  const FluxWeights weights = draw_flux_weights(spec);
  for (const bool rows_differ : {false, true}) {
    const FluxBatch batch = draw_flux_batch(spec, kRows, kTxt, kImg, rows_differ);
    const model::flux::Blocks blocks = *model::flux::build_blocks(spec);
    set_flux_weights(blocks, weights, at::kDouble);
    const FluxResults want = train_flux(blocks, batch, at::kDouble);
    for (const Split& split : {Split{"tp2", {.tp = 2}, 2},
                               {"tp4", {.tp = 4}, 4},
                               {"cp2", {.cp = 2}, 2},
                               {"cp4 around a ring", {.cp = 4}, 4, "alltoall"},
                               {"cp2 with a given rotation", {.cp = 2}, 2, "allgather", true},
                               {"tp2 cp2", {.cp = 2, .tp = 2}, 4}}) {
      SCOPED_TRACE(split.what);
      const Totals got = run_split(spec, weights, batch, split);
      EXPECT_LT(relative_error(got.prediction, want.prediction), 1e-10);
      EXPECT_LT(relative_error(got.grad_latents, want.grad_latents), 1e-10);
      EXPECT_LT(relative_error(got.grad_txt, want.grad_txt), 1e-10);
      ASSERT_EQ(got.gradients.size(), want.gradients.size());
      for (size_t i = 0; i < want.parameters.size(); ++i) {
        const std::string& name = want.parameters[i]->fqn;
        EXPECT_LT(relative_error(got.gradients.at(name), want.gradients[i]), 1e-10) << name;
      }
    }
  }
}

// Every rank's part of every parameter is one box, and the parts make up the whole, as checkpoints and FSDP need it.
TEST(FluxSplitTest, TensorRanksHoldConsecutiveParts) {
  const models::FluxSpec spec = small_flux();
  std::map<std::string, int64_t> held;
  std::mutex mutex;
  run_ranks({.tp = 4}, 4, every_axis(), [&](ThreadRank& self) {
    const model::flux::Blocks blocks = *model::flux::build_blocks(spec);
    ASSERT_TRUE(model::flux::parallelize(blocks, spec, {.mesh = self.mesh.get()}).ok());
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto& block : blocks) {
      for (const nn::Parameter& parameter : block->parameters()) {
        for (size_t dim = 0; dim < parameter.shape.size(); ++dim) {
          const bool cut = parameter.shape[dim] != parameter.global_shape[dim];
          EXPECT_EQ(parameter.offset[dim], cut ? self.rank * parameter.shape[dim] : 0) << parameter.fqn;
        }
        if (parameter.on_tensor_axis != nn::TensorAxisPlacement::kShard) continue;
        held[parameter.fqn] += at::empty(parameter.shape, at::kMeta).numel();
      }
    }
  });
  int64_t split = 0;
  for (const models::ParameterSpec& tensor : models::parameters(spec)) {
    if (!held.contains(tensor.fqn)) continue;
    EXPECT_EQ(held.at(tensor.fqn), tensor.numel()) << tensor.fqn;
    split += tensor.numel();
  }
  EXPECT_GT(split, models::parameter_count(spec) * 9 / 10);
}

TEST(FluxSplitTest, RefusesWhatDoesNotDivide) {
  models::FluxSpec spec = small_flux();
  spec.n_heads = 2;
  spec.axes_dim = {8, 8, 16};
  run_ranks({.tp = 4}, 4, every_axis(), [&](ThreadRank& self) {
    const model::flux::Blocks blocks = *model::flux::build_blocks(spec);
    const absl::Status status = model::flux::parallelize(blocks, spec, {.mesh = self.mesh.get()});
    EXPECT_EQ(std::string(status.message()),
              "parallelism.tensor_parallel_degree: 4 does not divide the model's 2 attention heads (possible: 1, 2)");
  });
  const FluxBatch batch = draw_flux_batch(spec, 1, 5, 6);
  run_ranks({.cp = 2}, 2, every_axis(), [&](ThreadRank& self) {
    EXPECT_THROW(context_share(batch.inputs, self.mesh->group(Axis::kContext)), c10::Error);
  });
}

}  // namespace
}  // namespace titan::testing
