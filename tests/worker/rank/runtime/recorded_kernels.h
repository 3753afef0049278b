#pragma once

#include <atomic>
#include <cstdint>

#include "tests/worker/rank/kernels/simulated_kernels.h"
#include "tests/worker/rank/runtime/recorded_graphs.h"

namespace titan::testing {

// Runs a GPU's row operations on the host (simulated_kernels.h) for a recording device. Graphs repeat them.
class RecordedKernels final : public kernels::DeviceKernels {
 public:
  bool run(const kernels::RmsNormForward& args) const override { return launch(args); }
  bool run(const kernels::RmsNormBackward& args) const override { return launch(args); }
  bool run(const kernels::RopeRotation& args) const override { return launch(args); }
  bool run(const kernels::SwigluForward& args) const override { return launch(args); }
  bool run(const kernels::SwigluBackward& args) const override { return launch(args); }
  bool run(const kernels::SumRows& args) const override { return launch(args); }
  bool run(const kernels::SumRowsBackward& args) const override { return launch(args); }
  bool run(const kernels::SoftmaxChunk& args) const override { return launch(args); }
  bool run(const kernels::CrossEntropyGradient& args, const float* scale) const override { return launch(args, scale); }
  bool run(const kernels::CrossEntropyLoss& args, float* loss) const override { return launch(args, loss); }
  bool run(const kernels::LowBitAdam& args, const kernels::DeviceStep& where) const override {
    return launch(args, where);
  }
  bool run(const kernels::Float8Amax& args) const override { return launch(args); }
  bool run(const kernels::Float8ColumnAmax& args) const override { return launch(args); }
  bool run(const kernels::Float8Cast& args) const override { return launch(args); }
  bool run(const kernels::Float8Rows& args) const override { return launch(args); }
  bool run(const kernels::Float8Columns& args) const override { return launch(args); }
  bool run(const kernels::TransposeBytes& args) const override { return launch(args); }
  bool run(const kernels::FindPaddedRows& args) const override { return launch(args); }
  bool on_host() const override { return true; }

  int64_t launches() const { return launches_; }  // Launches outside of graphs.

 private:
  template <typename... Arguments>
  bool launch(const Arguments&... arguments) const {
    if (!simulated_.run(arguments...)) return false;
    if (!is_captured()) ++launches_;
    repeat_on_replay([this, arguments...] { simulated_.run(arguments...); });
    return true;
  }

  const kernels::testing::SimulatedKernels simulated_;
  mutable std::atomic<int64_t> launches_{0};  // Ranks may be threads.
};

}  // namespace titan::testing
