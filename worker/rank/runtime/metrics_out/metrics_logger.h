#pragma once

// Where a step's figures go: torchtitan's console line, {dump}/metrics.jsonl, TensorBoard event files, and from
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

// Memory of this rank as torchtitan reports it. On the CPU "reserved" and "active" are the process's peak resident size
// and percentages refer to the machine's memory; retries and OOMs are -1 where the allocator has no such count
// (torchtitan too).
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

// What the trainer knows after a step; the rest is measured here.
struct StepMetrics {
  double global_avg_loss = 0;
  double global_max_loss = 0;
  double grad_norm = 0;
  int64_t n_tokens_seen = 0;
  double lr = 0;
  std::vector<std::pair<std::string, double>> extra;                // More named figures, appended in this order.
  std::vector<std::pair<std::string, std::vector<int64_t>>> lists;  // For metrics.jsonl alone.
};

using NamedMetrics = std::vector<std::pair<std::string, double>>;
using NamedLists = std::vector<std::pair<std::string, std::vector<int64_t>>>;

struct MetricsSetup {
  config::Metrics config;
  std::string dump_folder;
  std::string job_uid;
  int attempt = 1;
  int rank = 0;
  int metrics_rank = 0;            // The rank that knows the loss: 0, or the first of the last pipeline stage.
  int non_data_parallel_size = 1;  // cp * tp * pp
  double flops_per_token = 0;
  std::optional<double> device_peak;  // FLOP/s of a device, which MFU is a share of; none: no MFU.
  // How long this rank has been in a phase so far, as the host sees it: a device that is still at work when the host
  // goes on is waited for in the optimizer's phase, where the step's figures are read. Null: no times by phase.
  std::function<absl::Duration(rank_protocol::Phase)> time_in_phase;
  std::unique_ptr<MemoryMonitor> memory;                 // Null: CPU.
  const Clock* clock = nullptr;                          // Null: system_clock().
  std::function<void(const std::string& line)> console;  // Null: torchtitan's log format on stdout, flushed.
  storage::Files* files = nullptr;                       // Null: posix_files().
};

class MetricsLogger {
 public:
  static absl::StatusOr<std::unique_ptr<MetricsLogger>> create(MetricsSetup setup);
  virtual ~MetricsLogger() = default;

  virtual bool should_log(int64_t step) const = 0;  // step == 1 or step % log_freq == 0

  // Training goes on after this step: the first line is about the steps from there on. 0 unless called.
  virtual void start_after(int64_t step) = 0;

  // Each microbatch: tokens that this rank got, and how long it waited for them.
  virtual void add_batch(int64_t tokens, absl::Duration data_loading) = 0;
  virtual void add_validation_tokens(int64_t tokens) = 0;

  // Computes throughput, mfu (where the device's peak is known), times per step and memory since the last call, writes
  // all outputs, starts anew. Returns what was written (for the step event). A full disk costs the line, not the job:
  // warnings() tells. Errors: FailedPrecondition "fenced: ..." when a newer attempt owns the dump folder.
  virtual absl::StatusOr<NamedMetrics> log(int64_t step, const StepMetrics& metrics) = 0;
  virtual absl::StatusOr<NamedMetrics> log_validation(int64_t step, double loss) = 0;

  // Nothing is logged from here on: what still travels to Weights & Biases may end, while the rank does other things.
  virtual void no_more() = 0;
  // Waits for that, for so long at most.
  virtual void end(absl::Duration timeout) = 0;

  // Outputs that could not be written since the last call.
  virtual std::vector<std::string> take_warnings() = 0;
};

}  // namespace titan::runtime
