#include "worker/rank/runtime/step/validation.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/plan/pipeline/generators.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/step/parallel_setup.h"

namespace titan::runtime {
namespace {

// Returns sums over all ranks. This is the only place where the host waits for the device.
std::vector<double> joined(at::Tensor sums, const comm::DeviceMesh& mesh) {
  mesh.group(mesh::Axis::kWorld).all_reduce(sums).wait();
  const device::AllowHostWaitGuard wait;
  sums = sums.cpu();
  const double* const numbers = sums.const_data_ptr<double>();
  return {numbers, numbers + sums.numel()};
}

// Returns whether this is the first of the ranks that read the same rows.
bool reads_own_rows(const comm::DeviceMesh& mesh) {
  return mesh.group(mesh::Axis::kTensor).rank() == 0 && mesh.group(mesh::Axis::kContext).rank() == 0 &&
         mesh.group(mesh::Axis::kPipeline).rank() == 0;
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
  const bool counts = !loader_->warns_alike();
  if (counts) {
    const int64_t unusable = reads_own_rows(mesh) ? loader_->own_unusable() : 0;
    sums = at::cat({sums, at::full({1}, unusable, sums.options())});
  }
  const std::vector<double> all = joined(sums, mesh);
  if (counts)
    check(loader_->set_unusable(static_cast<int64_t>(all[2])), rank_protocol::kExitUserError, "VALIDATION_DATA");
  return {.loss = all[1] > 0 ? all[0] / all[1] : 0,
          .terms = static_cast<int64_t>(all[1]),
          .batches = batches,
          .rows = rows};
}

}  // namespace titan::runtime
