#pragma once

// Writes a step's metrics to torchtitan's console line, {dump}/metrics.jsonl and TensorBoard event files, and from
// metrics.jsonl to Weights & Biases.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock/clock.h"
#include "common/io/storage/file.h"
#include "common/plan/config/job_config.h"
#include "common/rank_protocol/beacon.h"

namespace titan::runtime {

// Memory of this rank as torchtitan reports it. On the CPU "reserved" and "active" are the process's peak resident
// size, and percentages refer to the machine's memory. Retries and OOMs are -1 if the allocator does not count them,
// like in torchtitan.
struct MemoryStats {
  double max_active_gib = -1;
  double max_active_percent = -1;
  double max_reserved_gib = -1;
  double max_reserved_percent = -1;
  int64_t num_alloc_retries = -1;
  int64_t num_ooms = -1;
};

class MemoryMonitor {
 public:
  virtual ~MemoryMonitor() = default;
  virtual MemoryStats peak() = 0;
  virtual void reset_peak() = 0;
  virtual std::string device_name() const = 0;
};
std::unique_ptr<MemoryMonitor> make_cpu_memory_monitor();

// Figures that the trainer knows after a step. The logger measures the others.
struct StepMetrics {
  double global_avg_loss = 0;
  double global_max_loss = 0;
  double grad_norm = 0;
  int64_t n_tokens_seen = 0;
  double lr = 0;
  std::vector<std::pair<std::string, double>> extra;                // Further named figures, appended in this order.
  std::vector<std::pair<std::string, std::vector<int64_t>>> lists;  // Only for metrics.jsonl.
};

using NamedMetrics = std::vector<std::pair<std::string, double>>;
using NamedLists = std::vector<std::pair<std::string, std::vector<int64_t>>>;

struct MetricsSetup {
  config::MetricsSection config;
  std::string dump_folder;
  std::string job_uid;
  int attempt = 1;
  int rank = 0;
  int metrics_rank = 0;            // The rank that writes metrics.jsonl.
  int non_data_parallel_size = 1;  // cp * tp * pp
  double flops_per_token = 0;
  std::optional<double> device_peak;  // FLOP/s of a device for MFU. Empty: no MFU.
  // Returns how long this rank has been in a phase so far, as seen by the host. The host waits for a busy device in the
  // optimizer's phase, where it reads the step's figures. Null: no times by phase.
  std::function<absl::Duration(rank_protocol::Phase)> time_in_phase;
  std::unique_ptr<MemoryMonitor> memory;                 // Null: CPU.
  const Clock* clock = nullptr;                          // Null: system_clock().
  std::function<void(const std::string& line)> console;  // Null: torchtitan's log format on stdout, flushed.
  storage::Files* files = nullptr;                       // Null: posix_files().
};

// A picture that a model made during validation.
struct LoggedPicture {
  std::string name;     // "000"
  std::string caption;  // The text that it shows.
  std::string png;      // The whole file.
  int width = 0, height = 0;
  bool shown = true;  // In TensorBoard and Weights & Biases, which get one picture or a grid of them.
};

class MetricsLogger {
 public:
  static absl::StatusOr<std::unique_ptr<MetricsLogger>> create(MetricsSetup setup);
  virtual ~MetricsLogger() = default;

  virtual bool should_log(int64_t step) const = 0;  // step == 1 or step % log_freq == 0

  // Call it if training resumes after this step, so that the first line covers the steps after it. 0 unless called.
  virtual void start_after(int64_t step) = 0;

  // Call it for each microbatch with the tokens that this rank got and the time it waited for them.
  virtual void add_batch(int64_t tokens, absl::Duration data_loading) = 0;
  virtual void add_validation_tokens(int64_t tokens) = 0;

  // Computes throughput, mfu (if the device's peak is known), times per step and memory since the last call, writes all
  // outputs and starts a new window. Returns what was written, for the step event. On a full disk only the line is
  // lost, and take_warnings() reports it. Errors: FailedPrecondition "fenced: ..." if a newer attempt owns the dump
  // folder.
  virtual absl::StatusOr<NamedMetrics> log(int64_t step, const StepMetrics& metrics) = 0;
  virtual absl::StatusOr<NamedMetrics> log_validation(int64_t step, double loss) = 0;

  // Writes pictures to {dump}/{folder}/step-N-NAME.png, on the rank that writes metrics.jsonl. The ones to show also go
  // to TensorBoard and, with the next line, to Weights & Biases. Errors: those of log().
  virtual absl::Status log_pictures(int64_t step, const std::string& folder,
                                    const std::vector<LoggedPicture>& pictures) = 0;

  // Call it when nothing more will be logged: the upload to Weights & Biases can then finish while the rank does other
  // work.
  virtual void no_more() = 0;
  // Waits for the upload, at most for `timeout`.
  virtual void end(absl::Duration timeout) = 0;

  // Returns warnings about outputs that could not be written since the last call.
  virtual std::vector<std::string> take_warnings() = 0;
};

}  // namespace titan::runtime
