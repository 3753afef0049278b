#include "worker/rank/runtime/step/step_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "worker/rank/device/host_waits.h"
#include "worker/rank/optim/grad_norm.h"

namespace titan::runtime {
namespace {

enum Field : int64_t { kLossSum, kTokens, kSquares, kCheckpoint, kStop };

// Of a rank without tokens, and of one whose loss is not a number: the sums tell of that one.
constexpr double kNoLoss = -std::numeric_limits<double>::infinity();

optim::Gate judge(const at::Tensor& sums, double max_norm) {
  const at::Tensor norm = sums[kSquares].sqrt();
  // Neither is near the largest double, so that their sum is finite if both are.
  const at::Tensor finite = at::isfinite(sums[kLossSum].div(sums[kTokens].clamp_min(1)).add_(norm));
  const at::Tensor skip = finite.logical_not().logical_or(sums[kTokens].eq(0));  // Without a label nothing is learned.
  return {.divisor = optim::clip_divisor(norm, max_norm), .skip = skip.to(at::kFloat)};
}

}  // namespace

Exchanged exchange(const StepReport& mine, const comm::DeviceMesh& mesh, at::Device device, double max_norm) {
  const comm::Group& world = mesh.group(mesh::Axis::kWorld);
  const double fields[kReportSums + 1] = {
      0, mine.valid_tokens, 0, mine.checkpoint ? 1.0 : 0.0, mine.stop ? 1.0 : 0.0, kNoLoss};
  at::Tensor known = at::empty({kReportSums + 1}, at::kDouble);
  std::copy(fields, fields + kReportSums + 1, known.mutable_data_ptr<double>());
  at::Tensor all = device::copy_ahead(known, device);
  if (mine.loss_sum.defined()) {
    all[kLossSum].copy_(mine.loss_sum);
    const at::Tensor mean = mine.loss_sum.to(at::kDouble).div(mine.valid_tokens);
    if (mine.valid_tokens > 0) all[kReportSums].copy_(mean.nan_to_num(kNoLoss, -kNoLoss, kNoLoss));
  }
  if (mine.sum_of_squares.defined()) all[kSquares].copy_(mine.sum_of_squares);
  const at::Tensor sums = all.narrow(0, 0, kReportSums);
  comm::Pending adding = world.all_reduce(sums);
  world.all_reduce(all.narrow(0, kReportSums, 1), c10d::ReduceOp::MAX).wait();
  adding.wait();
  return {StepReports(all), judge(sums, max_norm)};
}

StepSummary StepReports::summary() {
  const device::NamedHostWait wait;
  const auto all = reports_.wait().accessor<double, 1>();
  StepSummary summary;
  const double tokens = all[kTokens];
  summary.avg_loss = all[kLossSum] / std::max(tokens, 1.0);  // Of a step without labels nothing.
  // A NaN wins over every number: it must not hide behind another rank's loss.
  const bool has_largest = tokens > 0 && !std::isnan(all[kLossSum]);
  summary.max_loss = has_largest ? all[kReportSums] : summary.avg_loss;
  summary.grad_norm = std::sqrt(all[kSquares]);
  summary.checkpoint = all[kCheckpoint] > 0;
  summary.stop = all[kStop] > 0;
  return summary;
}

}  // namespace titan::runtime
