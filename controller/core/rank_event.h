#pragma once

// Events in a rank's spool that the controller uses.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace titan::core {

struct StepLogged {
  int64_t step = 0;
  // Metrics under torchtitan's names. A validation's line has other names. NaN: the logged value is not a number.
  std::optional<double> loss, grad_norm, tokens_per_second, mfu_percent, expert_max_over_mean;
  // Training time that saves took, per step since the last line.
  std::optional<double> checkpoint_seconds;
};
struct StateLoaded {
  int64_t step = 0;
  std::string source;  // "checkpoint", or the kind of initial weights.
};
struct CheckpointStaged {
  int64_t step = 0;
};
struct CheckpointCommitted {
  int64_t step = 0;
  bool is_full = false;  // False: an export, from which training cannot resume.
  std::optional<double> seconds;
};
struct CheckpointFailed {
  int64_t step = 0;
  std::string reason;
};
struct CheckpointRejected {
  int64_t step = 0;
  std::string reason;
};
struct TraceWritten {
  int64_t first_step = 0, last_step = 0, bytes = 0;
};
struct RankWarning {
  std::string message;
};
struct RankError {
  std::string error_class, reason, message;
  std::string holder_job;  // The job that owns the dump folder.
  int holder_attempt = 0;
  bool is_same_job = true;
};
struct TrainingEnded {
  int64_t step = 0;
  bool is_stopped = false;  // The ranks stopped on request. Else all steps are done.
};

using RankEvent = std::variant<StepLogged, StateLoaded, CheckpointStaged, CheckpointCommitted, CheckpointFailed,
                               CheckpointRejected, TraceWritten, RankWarning, RankError, TrainingEnded>;

}  // namespace titan::core
