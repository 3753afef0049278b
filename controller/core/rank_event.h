#pragma once

// What a line of a rank's spool says, of those that mean anything to the controller.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace titan::core {

struct StepLogged {
  int64_t step = 0;
  // As torchtitan names them; those of a validation's line are others. NaN: it is there and not a number.
  std::optional<double> loss, grad_norm, tokens_per_second, mfu_percent, expert_max_over_mean;
  std::optional<double>
      checkpoint_seconds;  // That saves took of the training's time, for each step since the last line.
};
struct Loaded {
  int64_t step = 0;
  std::string source;  // "checkpoint" or which initial weights.
};
struct CheckpointStaged {
  int64_t step = 0;
};
struct CheckpointCommitted {
  int64_t step = 0;
  bool is_full = false;  // Else an export, from which nothing can resume.
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
  std::string holder_job;  // Who has the dump folder.
  int holder_attempt = 0;
  bool is_same_job = true;
};
struct TrainingEnded {
  int64_t step = 0;
  bool is_stopped = false;  // As it was asked to; else all steps are done.
};

using RankEvent = std::variant<StepLogged, Loaded, CheckpointStaged, CheckpointCommitted, CheckpointFailed,
                               CheckpointRejected, TraceWritten, RankWarning, RankError, TrainingEnded>;

}  // namespace titan::core
