#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"

namespace titan::runtime {

// torchtitan 0.2.2's lines, character by character (but for an unknown mfu, "-"): dashboards and scripts that grep them
// keep working.
struct ConsoleFigures {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  MemoryStats memory;
  double tokens_per_second = 0;
  double tflops = 0;
  std::optional<double> mfu;  // None: the device's peak is not known.
};
std::string train_line(const ConsoleFigures& figures, bool color);
std::string validation_line(const ConsoleFigures& figures, bool color);

// The prefix of torchtitan's logger: "[titan] 2026-01-31 12:34:56,789 - root - INFO - " and the message.
std::string log_line(absl::Time now, const std::string& message);

// 1234567.891 with two decimals: "1,234,567.89", as Python's "{:,.2f}".
std::string with_commas(double value, int decimals);

}  // namespace titan::runtime
