#include "tests/numerics/engine_on_mesh.h"

#include <stdexcept>

#include "tests/worker/comm/thread_ranks.h"
#include "worker/model/llama/llama.h"
#include "worker/model/model.h"
#include "worker/nn/loss.h"
#include "worker/runtime/sharded_model.h"

namespace titan::testing {

Tensors engine_step(const models::ModelSpec& spec, const Tensors& weights, const at::Tensor& tokens,
                    const at::Tensor& labels, const mesh::Degrees& degrees, int world) {
  Tensors joined{{"logits", at::empty({tokens.size(0), tokens.size(1), spec.vocab_size})}};
  for (const auto& [fqn, weight] : weights) joined["grad." + fqn] = at::empty_like(weight);
  const int64_t valid = nn::count_valid(labels).item<int64_t>();

  run_ranks(degrees, world, {mesh::Axis::kFsdp, mesh::Axis::kReplicate, mesh::Axis::kWorld}, [&](ThreadRank& self) {
    const mesh::Mesh& shape = self.mesh->mesh();
    const int64_t rows = tokens.size(0) / shape.size(mesh::Axis::kBatch);
    const int64_t first = rows * shape.index(self.rank, mesh::Axis::kBatch);
    model::Model built = model::build(spec, {.seq_len = tokens.size(1)}).value();
    auto* head = dynamic_cast<model::llama::Head*>(built.blocks.back().get());
    if (head == nullptr) throw std::logic_error("the last block is not Llama's head");
    head->output.seams.output = [&](const at::Tensor& logits) {
      at::NoGradGuard no_grad;
      joined.at("logits").slice(0, first, first + rows).copy_(logits.detach());
      return logits;
    };
    auto sharded =
        runtime::ShardedModel::create(std::move(built), runtime::ShardingOptions{}, *self.mesh, *self.device).value();
    for (auto* placed : sharded->parameters()) {
      placed->value.copy_(weights.at(placed->parameter->fqn).narrow(0, placed->first_row, placed->rows));
    }
    const nn::MicrobatchContext context{tokens.slice(0, first, first + rows), labels.slice(0, first, first + rows)};
    sharded->engine().train(
        context, [valid] { return valid; }, /*last=*/true);
    sharded->engine().finish_step();
    if (shape.index(self.rank, mesh::Axis::kReplicate) != 0) return;  // Replicas hold the same gradients.
    for (auto* placed : sharded->parameters()) {
      joined.at("grad." + placed->parameter->fqn).narrow(0, placed->first_row, placed->rows).copy_(placed->grad);
    }
  });
  return joined;
}

}  // namespace titan::testing
