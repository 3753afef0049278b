#include "tests/numerics/engine_on_mesh.h"

#include <vector>

#include "common/plan/pipeline/generators.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/model/model.h"
#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/runtime/engine/executor.h"
#include "worker/rank/runtime/engine/sharded_model.h"

namespace titan::testing {

Tensors engine_step(const models::ModelSpec& spec, const Tensors& weights, const at::Tensor& tokens,
                    const at::Tensor& labels, const mesh::Degrees& degrees, int world, const Tensors& buffers) {
  Tensors joined{{"logits", at::empty({tokens.size(0), tokens.size(1), spec.vocab_size})}};
  for (const auto& [fqn, weight] : weights) joined["grad." + fqn] = at::empty_like(weight);
  const int64_t valid = nn::count_valid(labels).item<int64_t>();

  run_ranks(degrees, world, {mesh::Axis::kFsdp, mesh::Axis::kReplicate, mesh::Axis::kWorld}, [&](ThreadRank& self) {
    const mesh::Mesh& shape = self.mesh->mesh();
    const int64_t rows = tokens.size(0) / shape.size(mesh::Axis::kBatch);
    const int64_t first = rows * shape.index(self.rank, mesh::Axis::kBatch);
    model::Model built = model::build(spec, {.seq_len = tokens.size(1)}).value();
    built.loss = [&, loss = built.loss](const at::Tensor& logits, const at::Tensor& row_labels) {
      at::NoGradGuard no_grad;
      joined.at("logits").slice(0, first, first + rows).copy_(logits.detach());
      at::AutoGradMode grad(true);
      return loss(logits, row_labels);
    };
    std::vector<nn::Block*> blocks;
    for (const auto& block : built.blocks) blocks.push_back(block.get());
    auto sharded =
        runtime::ShardedModel::create(std::move(built), runtime::ShardingOptions{}, *self.mesh, *self.device).value();
    for (auto* placed : sharded->parameters()) {
      placed->value.copy_(weights.at(placed->parameter->fqn).narrow(0, placed->first_row, placed->rows));
    }
    for (nn::Block* block : blocks) {
      for (nn::Buffer& buffer : block->buffers()) {
        if (const auto value = buffers.find(buffer.fqn); value != buffers.end()) buffer.value.copy_(value->second);
      }
    }
    nn::MicrobatchContext context{tokens.slice(0, first, first + rows), labels.slice(0, first, first + rows)};
    if (spec.mask == models::Mask::kBlockCausal) context.documents = nn::number_documents(context.tokens, spec.eos_id);
    runtime::Executor executor(sharded->stages(), nullptr);
    executor.run(pipeline::generate("1F1B", 1, 1, 1).value(), {context},
                 [valid] { return at::scalar_tensor(valid, at::kLong); });
    sharded->finish_step();
    if (shape.index(self.rank, mesh::Axis::kReplicate) != 0) return;  // Replicas hold the same gradients.
    for (auto* placed : sharded->parameters()) {
      joined.at("grad." + placed->parameter->fqn).narrow(0, placed->first_row, placed->rows).copy_(placed->grad);
    }
  });
  return joined;
}

}  // namespace titan::testing
