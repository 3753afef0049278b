#include "worker/runtime/step/step_report.h"

#include <cmath>

namespace titan::runtime {

StepSummary exchange(const StepReport& mine, const comm::DeviceMesh& mesh, at::Device device) {
  const comm::Group& world = mesh.group(mesh::Axis::kWorld);
  const double fields[kReportFields] = {0, mine.valid_tokens, 0, mine.checkpoint ? 1.0 : 0.0, mine.stop ? 1.0 : 0.0};
  at::Tensor known = at::empty({kReportFields}, at::kDouble);
  std::copy(fields, fields + kReportFields, known.mutable_data_ptr<double>());
  at::Tensor input = known.to(device);
  if (mine.loss_sum.defined()) input[0].copy_(mine.loss_sum);
  if (mine.sum_of_squares.defined()) input[2].copy_(mine.sum_of_squares);
  at::Tensor all = at::empty({world.size(), kReportFields}, input.options());
  world.all_gather(all, input).wait();
  all = all.cpu();

  StepSummary summary;
  double loss_sum = 0;
  double tokens = 0;
  double squares = 0;
  summary.max_loss = -std::numeric_limits<double>::infinity();
  const auto rows = all.accessor<double, 2>();
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto report = rows[rank];
    loss_sum += report[0];
    tokens += report[1];
    squares += report[2];
    // A NaN wins over every number: it must not hide behind another rank's loss.
    const double mean = report[0] / report[1];
    if (report[1] > 0 && !std::isnan(summary.max_loss) && !(mean <= summary.max_loss)) summary.max_loss = mean;
    summary.checkpoint |= report[3] > 0;
    summary.stop |= report[4] > 0;
  }
  summary.avg_loss = loss_sum / tokens;
  summary.grad_norm = std::sqrt(squares);
  return summary;
}

}  // namespace titan::runtime
