#include "tests/worker/rank/model/split_runs.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/model/parameter_part.h"
#include "tests/worker/rank/model/testing.h"
#include "worker/rank/model/attention_masks.h"
#include "worker/rank/model/model.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/parallel/context.h"

namespace titan::testing {
namespace {

using mesh::Axis;

constexpr int64_t kRows = 4, kRowLength = 24;

// Adds this rank's part of forward, loss and gradients to the totals.
void run_part(const model::Model& model, const Task& task, const nn::MicrobatchContext& share, bool count_loss,
              const std::function<bool(const nn::Parameter&)>& count, std::mutex& mutex, Totals& totals) {
  set_weights(model, task.weights, at::kDouble);
  std::vector<nn::Parameter*> parameters;
  std::vector<at::Tensor> leaves;
  at::Tensor x = share.tokens;
  for (const auto& block : model.blocks) {
    if (block != model.blocks.back()) x = block->forward(x, share);
    for (nn::Parameter& p : block->parameters()) {
      parameters.push_back(&p);
      leaves.push_back(p.weight);
    }
  }
  const at::Tensor loss = dynamic_cast<nn::HasLoss&>(*model.blocks.back()).loss(x, share, model.loss);
  const auto gradients = torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
  const std::lock_guard<std::mutex> lock(mutex);
  if (count_loss) totals.loss += loss.item<double>();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const nn::Parameter& p = *parameters[i];
    if (!gradients[i].defined() || !count(p)) continue;
    at::Tensor& whole = totals.gradients[p.fqn];
    if (!whole.defined()) whole = at::zeros(p.global_shape, at::kDouble);
    part_of(whole, p).add_(gradients[i]);
  }
}

}  // namespace

Totals run_split(const Task& task, const Split& split) {
  Totals totals;
  std::mutex mutex;
  run_ranks(split.degrees, split.world, every_axis(), [&](ThreadRank& self) {
    const mesh::Mesh& mesh = self.mesh->mesh();
    model::Model model = *model::build(task.spec, {.seq_len = kRowLength, .max_logit_bytes = split.max_logit_bytes});
    const absl::Status done = model.parallelize(model, {.mesh = self.mesh.get(),
                                                        .sequence_parallel = split.sequence,
                                                        .loss_parallel = split.loss_parallel,
                                                        .async_tensor_parallel = split.async,
                                                        .rotate_method = split.rotate});
    ASSERT_TRUE(done.ok()) << done;
    nn::MicrobatchContext rows = task.batch;
    const int64_t count = kRows / mesh.size(Axis::kBatch), first = count * mesh.index(self.rank, Axis::kBatch);
    for (at::Tensor* tensor : {&rows.tokens, &rows.labels, &rows.documents}) {
      if (tensor->defined()) *tensor = tensor->narrow(0, first, count);
    }
    const nn::MicrobatchContext share = parallel::shard_microbatch(rows, {.group = &self.mesh->group(Axis::kContext),
                                                                          .balance = split.balance,
                                                                          .layers = model::attention_masks(task.spec)});
    const bool first_tensor_rank = mesh.index(self.rank, Axis::kTensor) == 0;
    const bool experts_on_tensor_ranks = mesh.size(Axis::kExpert) > 1 && mesh.size(Axis::kExpertTensor) == 1;
    run_part(
        model, task, share, first_tensor_rank,
        [&](const nn::Parameter& p) {
          if (p.expert && experts_on_tensor_ranks) return true;  // Each tensor rank has other tokens.
          return first_tensor_rank || p.on_tensor_axis != nn::TensorAxisPlacement::kReplicate;
        },
        mutex, totals);
  });
  return totals;
}

Task draw_task(const models::ModelSpec& spec, uint64_t seed) {
  Task task{spec, {}, {}};
  const model::Model model = *model::build(task.spec, {.seq_len = kRowLength});
  task.weights = draw_weights(model, task.spec, seed);
  task.batch.tokens = at::randint(task.spec.vocab_size, {kRows, kRowLength}, at::kLong);
  task.batch.labels = at::randint(task.spec.vocab_size, {kRows, kRowLength}, at::kLong);
  task.batch.labels.masked_fill_(at::rand({kRows, kRowLength}).lt(0.2), nn::kIgnoreIndex);
  if (task.spec.mask == models::Mask::kBlockCausal) task.batch.documents = draw_documents(kRows, kRowLength);
  return task;
}

Totals run_whole(const Task& task) {
  Totals totals;
  std::mutex mutex;
  const model::Model model = *model::build(task.spec, {.seq_len = kRowLength});
  run_part(
      model, task, task.batch, true, [](const nn::Parameter&) { return true; }, mutex, totals);
  return totals;
}

void expect_same(const Totals& got, const Totals& want) {
  EXPECT_NEAR(got.loss / want.loss, 1, 1e-12);
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  double largest = 0;
  for (const auto& [name, gradient] : want.gradients) largest = std::max(largest, gradient.norm().item<double>());
  for (const auto& [name, gradient] : want.gradients) {
    const double size = std::max(gradient.norm().item<double>(), 1e-4 * largest);
    EXPECT_LT((got.gradients.at(name) - gradient).norm().item<double>() / size, 1e-10) << name;
  }
}

}  // namespace titan::testing
