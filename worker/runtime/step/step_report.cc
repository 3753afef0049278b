#include "worker/runtime/step/step_report.h"

#include <algorithm>
#include <cmath>

#include "worker/comm/host_waits.h"
#include "worker/optim/grad_norm.h"

namespace titan::runtime {
namespace {

enum Field : int64_t { kLossSum, kTokens, kSquares, kCheckpoint, kStop };

optim::Gate judge(const at::Tensor& reports, double max_norm) {
  const at::Tensor sums = reports.sum(0);
  const at::Tensor norm = sums[kSquares].sqrt();
  // Neither is near the largest double, so that their sum is finite if both are.
  const at::Tensor finite = at::isfinite(sums[kLossSum].div(sums[kTokens].clamp_min(1)).add_(norm));
  const at::Tensor skip = finite.logical_not().logical_or(sums[kTokens].eq(0));  // Without a label nothing is learned.
  return {.divisor = optim::clip_divisor(norm, max_norm), .skip = skip.to(at::kFloat)};
}

}  // namespace

Exchanged exchange(const StepReport& mine, const comm::DeviceMesh& mesh, at::Device device, double max_norm) {
  const comm::Group& world = mesh.group(mesh::Axis::kWorld);
  const double fields[kReportFields] = {0, mine.valid_tokens, 0, mine.checkpoint ? 1.0 : 0.0, mine.stop ? 1.0 : 0.0};
  at::Tensor known = at::empty({kReportFields}, at::kDouble);
  std::copy(fields, fields + kReportFields, known.mutable_data_ptr<double>());
  at::Tensor input = comm::copy_ahead(known, device);
  if (mine.loss_sum.defined()) input[kLossSum].copy_(mine.loss_sum);
  if (mine.sum_of_squares.defined()) input[kSquares].copy_(mine.sum_of_squares);
  at::Tensor all = at::empty({world.size(), kReportFields}, input.options());
  world.all_gather(all, input).wait();
  return {StepReports(all), judge(all, max_norm)};
}

StepSummary StepReports::summary() {
  const comm::NamedHostWait wait;
  const at::Tensor& all = reports_.wait();
  StepSummary summary;
  double loss_sum = 0;
  double tokens = 0;
  double squares = 0;
  summary.max_loss = -std::numeric_limits<double>::infinity();
  const auto rows = all.accessor<double, 2>();
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    const auto report = rows[rank];
    loss_sum += report[kLossSum];
    tokens += report[kTokens];
    squares += report[kSquares];
    // A NaN wins over every number: it must not hide behind another rank's loss.
    const double mean = report[kLossSum] / report[kTokens];
    if (report[kTokens] > 0 && !std::isnan(summary.max_loss) && !(mean <= summary.max_loss)) summary.max_loss = mean;
    summary.checkpoint |= report[kCheckpoint] > 0;
    summary.stop |= report[kStop] > 0;
  }
  summary.avg_loss = loss_sum / std::max(tokens, 1.0);  // Of a step without labels nothing.
  if (tokens == 0) summary.max_loss = summary.avg_loss;
  summary.grad_norm = std::sqrt(squares);
  return summary;
}

}  // namespace titan::runtime
