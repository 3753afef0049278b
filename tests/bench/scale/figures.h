#pragma once

// Figures of a load: latencies, and the use of the controller process.

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "nlohmann/json.hpp"

namespace titan::scale {

// Latencies in milliseconds. Thread-safe.
class Latencies {
 public:
  void add(absl::Duration took) {
    const std::lock_guard lock(mutex_);
    taken_.push_back(absl::ToDoubleMilliseconds(took));
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    taken_.clear();
  }
  // Returns {"count", "p50_ms", "p99_ms", "max_ms"}.
  nlohmann::json figures() const {
    const std::lock_guard lock(mutex_);
    std::vector<double> sorted = taken_;
    std::sort(sorted.begin(), sorted.end());
    const auto at = [&](double p) {
      return sorted.empty() ? 0.0 : sorted[static_cast<size_t>(p * static_cast<double>(sorted.size() - 1))];
    };
    return {{"count", sorted.size()}, {"p50_ms", at(0.5)}, {"p99_ms", at(0.99)}, {"max_ms", at(1)}};
  }

 private:
  mutable std::mutex mutex_;
  std::vector<double> taken_;
};

// Figures of another process from /proc. With pid 0 all figures are 0.
class Process {
 public:
  explicit Process(int pid) : pid_(pid) {}
  double cpu_seconds() const {
    std::string stat;
    std::getline(std::ifstream("/proc/" + std::to_string(pid_) + "/stat"), stat);
    std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    std::string skipped;
    for (int i = 3; i < 14; ++i) fields >> skipped;
    double user = 0, system = 0;
    fields >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  // `field`: "VmRSS" or "VmHWM".
  double mebibytes(const std::string& field) const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(field + ":")) return std::stod(line.substr(field.size() + 1)) / 1024;
    }
    return 0;
  }

 private:
  const int pid_;
};

// Waits until `condition` holds. Returns false if it does not within `limit`.
template <typename Condition>
bool wait_until(absl::Duration limit, const Condition& condition) {
  const absl::Time end = absl::Now() + limit;
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace titan::scale
