#include "worker/rank/runtime/step/validation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/plan/pipeline/generators.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/step/parallel_setup.h"

namespace titan::runtime {
namespace {

// Sums over all ranks. This is the only place where the host waits for the device.
ValidationResult joined(at::Tensor sums, const comm::DeviceMesh& mesh) {
  mesh.group(mesh::Axis::kWorld).all_reduce(sums).wait();
  const device::AllowHostWaitGuard wait;
  sums = sums.cpu();
  const double* both = sums.const_data_ptr<double>();
  return {.loss = both[1] > 0 ? both[0] / both[1] : 0, .terms = static_cast<int64_t>(both[1])};
}

}  // namespace

Validator::Validator(std::unique_ptr<data::BatchSource> loader, int64_t steps, const model::Objective& objective,
                     const MicrobatchOptions& microbatches, pipeline::Schedule training)
    : loader_(std::move(loader)),
      steps_(steps),
      objective_(objective),
      microbatch_options_(microbatches),
      training_(std::move(training)),
      start_(loader_->state()) {}

// Returns this rank's sums [loss, terms].
at::Tensor Validator::evaluate(Executor& executor, const comm::DeviceMesh& mesh, const data::Batch& batch) {
  MicrobatchOptions options = microbatch_options_;
  // The size of training, if it divides the batch.
  if (options.rows > 0) options.rows = std::gcd(options.rows, batch.rows());
  const Microbatches microbatches = make_microbatches(objective_, batch, options);
  const auto count = static_cast<int>(microbatches.contexts.size());
  const at::Tensor loss = executor.run(pipeline::forward_only(training_, count), microbatches.contexts);
  if (!reports_loss(training_, mesh)) return at::zeros({2}, loss.options());
  return at::stack({loss, at::full({}, microbatches.loss_terms, loss.options())});
}

ValidationResult Validator::run(Executor& executor, const comm::DeviceMesh& mesh) {
  check(loader_->restore(start_), rank_protocol::kExitUserError, "VALIDATION_DATA");
  // Divides only after everything is summed, because batches and ranks have different numbers of terms.
  at::Tensor sums = at::zeros({2}, at::TensorOptions(at::kDouble).device(microbatch_options_.device));
  int64_t batches = 0, rows = 0;
  while (steps_ < 0 || batches < steps_) {
    const absl::StatusOr<data::Batch> batch = loader_->next();
    if (absl::IsOutOfRange(batch.status())) break;
    check(batch.status(), rank_protocol::kExitUserError, "VALIDATION_DATA");
    sums += evaluate(executor, mesh, *batch);
    rows += batch->rows();
    ++batches;
  }
  if (batches == 0) return {};
  ValidationResult result = joined(sums, mesh);
  result.batches = batches;
  result.rows = rows;
  return result;
}

}  // namespace titan::runtime
