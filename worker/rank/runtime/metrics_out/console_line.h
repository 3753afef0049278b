#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"

namespace titan::runtime {

// The figures of torchtitan 0.2.2's console lines. The lines are identical to its lines (except for an unknown mfu,
// "-"), so dashboards and scripts that grep them keep working.
struct ConsoleFigures {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  MemoryStats memory;
  double tokens_per_second = 0;
  double tflops = 0;
  std::optional<double> mfu;  // Empty: the device's peak is unknown.
};
std::string train_line(const ConsoleFigures& figures, bool color);
std::string validation_line(const ConsoleFigures& figures, bool color);

// Formats a message like torchtitan's logger: "[titan] 2026-01-31 12:34:56,789 - root - INFO - " and the message.
std::string log_line(absl::Time now, const std::string& message);

// Formats 1234567.891 with two decimals as "1,234,567.89", like Python's "{:,.2f}".
std::string with_commas(double value, int decimals);

}  // namespace titan::runtime
