#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock/clock.h"
#include "common/base/sync/sync.h"
#include "common/rank_protocol/beacon.h"
#include "common/rank_protocol/spool.h"
#include "nlohmann/json.hpp"

namespace titan::runtime {

// The rank's connection to its node: writes events to its spool file and progress to its beacon, and reads commands.
class Reporter {
 public:
  // Creates the run folder. Errors: those of the file system.
  static absl::StatusOr<std::unique_ptr<Reporter>> open(const std::string& run_folder, int rank, const Clock& clock);

  // Thread-safe. On a full disk the event is lost and reported on stderr, but the rank continues.
  void event(const char* kind, nlohmann::json members = nlohmann::json::object());
  void warning(const std::string& message);  // Also on stderr.

  // Progress. Call from one thread.
  void enter(rank_protocol::Phase phase) { beacon_->enter(phase); }
  // Enters a phase of the start. An event reports how long the previous one took; `earlier` seconds are added to the
  // first.
  void enter_start_phase(rank_protocol::Phase phase, double earlier = 0);
  // Returns the time that this rank has spent in a phase, by the host's clock and without asking a device. One thread.
  absl::Duration time_in(rank_protocol::Phase phase) const { return beacon_->time_in(phase); }
  void microbatch(int64_t index);
  void finished_step(int64_t step, absl::Duration duration);
  // Reports the time of a finished step without the waits for other ranks.
  void own_time(absl::Duration duration);
  rank_protocol::TraceRequest& trace_words() { return beacon_->page().trace; }
  std::atomic<int64_t>* collective_sequence() { return &beacon_->page().collective_seq; }

  // The command that the node wrote and this rank has not yet acknowledged.
  rank_protocol::BeaconCommand command() const;
  void acknowledge(rank_protocol::BeaconCommand command);
  // Requests a capture of this rank's stacks and returns once its shim has made it, or after `timeout`. Thread-safe.
  void await_stacks(absl::Duration timeout);
  // Returns whether the node has requested a stop, acknowledged or not. A stop is never withdrawn. Thread-safe.
  bool stop_asked() const;

 private:
  Reporter(rank_protocol::SpoolWriter spool, std::unique_ptr<rank_protocol::Beacon> beacon, const Clock& clock)
      : clock_(clock), spool_(std::move(spool)), beacon_(std::move(beacon)), phase_began_(clock.monotonic()) {}

  const Clock& clock_;
  sync::Mutex mutex_;
  rank_protocol::SpoolWriter spool_ TITAN_GUARDED_BY(mutex_);
  std::unique_ptr<rank_protocol::Beacon> beacon_;
  rank_protocol::Phase phase_ = rank_protocol::Phase::kInit;
  absl::Duration phase_began_;
};

// Prints one line on stdout in torchtitan's log format.
void log_line(const std::string& message);

}  // namespace titan::runtime
