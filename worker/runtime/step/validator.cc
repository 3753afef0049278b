#include "worker/runtime/step/validator.h"

#include <numeric>
#include <utility>

#include "common/pipeline/generators.h"
#include "worker/runtime/failure/failure.h"
#include "worker/runtime/step/parallel_setup.h"

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

Validator::Validator(std::unique_ptr<data::Loader> loader, int64_t steps, const MicrobatchOptions& microbatches,
                     pipeline::Schedule training)
    : loader_(std::move(loader)),
      steps_(steps),
      microbatch_options_(microbatches),
      training_(std::move(training)),
      start_(loader_->state()) {}

// From the sum of cross-entropies to the report of this rank: [sum, valid tokens].
at::Tensor Validator::evaluate(Executor& executor, const comm::DeviceMesh& mesh, const data::Batch& batch) {
  MicrobatchOptions options = microbatch_options_;
  // As large as in training where that divides the batch.
  if (options.rows > 0) options.rows = std::gcd(options.rows, batch.tokens.size(0));
  const Microbatches microbatches = make_microbatches(batch, options);
  const auto count = static_cast<int>(microbatches.contexts.size());
  const at::Tensor loss = executor.run(pipeline::forward_only(training_, count), microbatches.contexts);
  if (!reports_loss(training_, mesh)) return at::zeros({2}, loss.options());
  return at::stack({loss, at::full({}, microbatches.valid_tokens, loss.options())});
}

ValidationResult Validator::run(Executor& executor, const comm::DeviceMesh& mesh) {
  const at::Device device = microbatch_options_.device;
  check(loader_->restore(start_), rank_protocol::kExitUserError, "VALIDATION_DATA");
  const comm::Group& batch_group = mesh.group(mesh::Axis::kBatch);
  ValidationResult result;
  std::vector<at::Tensor> sums;  // [cross-entropies, valid tokens] of each batch.
  while (steps_ < 0 || static_cast<int64_t>(sums.size()) < steps_) {
    absl::StatusOr<data::Batch> batch = loader_->next();
    const bool exhausted = absl::IsOutOfRange(batch.status());
    if (!exhausted) check(batch.status(), rank_protocol::kExitUserError, "VALIDATION_DATA");
    if (!everyone_has_one(!exhausted, batch_group, device)) break;
    result.tokens += batch->labels.numel();
    sums.push_back(evaluate(executor, mesh, *batch));
  }
  result.batches = static_cast<int64_t>(sums.size());
  if (sums.empty()) return result;
  at::Tensor all = at::stack(sums);
  mesh.group(mesh::Axis::kWorld).all_reduce(all).wait();
  result.loss = (all.select(1, 0) / all.select(1, 1)).mean().item<double>();
  return result;
}

}  // namespace titan::runtime
