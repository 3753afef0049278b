#include "worker/runtime/validator.h"

#include "worker/nn/loss.h"
#include "worker/runtime/failure.h"

namespace titan::runtime {
namespace {

// Whether every data-parallel rank has another batch.
bool everyone_has_one(bool mine, const comm::Group& batch_group, at::Device device) {
  if (batch_group.size() == 1) return mine;
  at::Tensor flag = at::full({1}, mine ? 1 : 0, at::TensorOptions(at::kInt).device(device));
  batch_group.all_reduce(flag, c10d::ReduceOp::MIN).wait();
  return flag.item<int>() == 1;
}

}  // namespace

Validator::Validator(std::unique_ptr<data::Loader> loader, int64_t steps)
    : loader_(std::move(loader)), steps_(steps), start_(loader_->state()) {}

ValidationResult Validator::run(BlockEngine& engine, const comm::DeviceMesh& mesh, at::Device device) {
  check(loader_->restore(start_), rank_protocol::kExitUserError, "VALIDATION_DATA");
  const comm::Group& batch_group = mesh.group(mesh::Axis::kBatch);
  ValidationResult result;
  std::vector<at::Tensor> sums;  // [cross-entropies, valid tokens] of each batch.
  while (steps_ < 0 || static_cast<int64_t>(sums.size()) < steps_) {
    absl::StatusOr<data::Batch> batch = loader_->next();
    const bool exhausted = absl::IsOutOfRange(batch.status());
    if (!exhausted) check(batch.status(), rank_protocol::kExitUserError, "VALIDATION_DATA");
    if (!everyone_has_one(!exhausted, batch_group, device)) break;
    nn::MicrobatchContext context{batch->tokens.to(device), batch->labels.to(device)};
    const at::Tensor loss = engine.evaluate(context);
    result.tokens += context.labels.numel();
    sums.push_back(at::stack({loss.to(at::kDouble), nn::count_valid(context.labels).to(at::kDouble)}));
  }
  engine.release();
  result.batches = static_cast<int64_t>(sums.size());
  if (sums.empty()) return result;
  at::Tensor all = at::stack(sums);
  batch_group.all_reduce(all).wait();
  result.loss = (all.select(1, 0) / all.select(1, 1)).mean().item<double>();
  return result;
}

}  // namespace titan::runtime
