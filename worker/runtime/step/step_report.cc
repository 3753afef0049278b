#include "worker/runtime/step/step_report.h"

#include <cmath>

namespace titan::runtime {

StepSummary exchange(const StepReport& mine, const comm::DeviceMesh& mesh, at::Device device) {
  constexpr int64_t kFields = 5;
  const comm::Group& world = mesh.group(mesh::Axis::kWorld);
  const double fields[kFields] = {mine.loss_sum, mine.valid_tokens, mine.sum_of_squares, mine.checkpoint ? 1.0 : 0.0,
                                  mine.stop ? 1.0 : 0.0};
  at::Tensor input = at::empty({kFields}, at::kDouble);
  std::copy(fields, fields + kFields, input.mutable_data_ptr<double>());
  at::Tensor all = at::empty({world.size(), kFields}, at::TensorOptions(at::kDouble).device(device));
  world.all_gather(all, input.to(device)).wait();
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
