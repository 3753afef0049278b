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

// What a rank tells its node: events in its spool file, progress in its beacon; and what it is told.
class Reporter {
 public:
  // Makes the run folder. Errors: of the file system.
  static absl::StatusOr<std::unique_ptr<Reporter>> open(const std::string& run_folder, int rank, const Clock& clock);

  // Thread-safe. A full disk loses the event and says so on stderr, never the rank.
  void event(const char* kind, nlohmann::json members = nlohmann::json::object());
  void warning(const std::string& message);  // On stderr too.

  // Progress; one thread.
  void enter(rank_protocol::Phase phase) { beacon_->enter(phase); }
  // A phase of the start: an event tells how long the one before took. `earlier` seconds are added to the first one.
  void enter_start_phase(rank_protocol::Phase phase, double earlier = 0);
  // How long this rank has been in a phase, by the clock that notes when each one begins; asks no device. One thread.
  absl::Duration time_in(rank_protocol::Phase phase) const { return beacon_->time_in(phase); }
  void microbatch(int64_t index);
  void finished_step(int64_t step, absl::Duration duration);
  // The part of a finished step that was this rank's own: without what it waited for others.
  void own_time(absl::Duration duration);
  rank_protocol::TraceRequest& trace_words() { return beacon_->page().trace; }
  std::atomic<int64_t>* collective_sequence() { return &beacon_->page().collective_seq; }

  // The command that the node wrote and this rank has not acknowledged yet.
  rank_protocol::Command command() const;
  void acknowledge(rank_protocol::Command command);
  // Wants this rank to be looked at, and returns once its shim has done so, or after `timeout`. On any thread.
  void await_look(absl::Duration timeout);
  // The node asked this rank to stop, acknowledged or not; a stop is never taken back. On any thread.
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

// One line on stdout in torchtitan's log format.
void log_line(const std::string& message);

}  // namespace titan::runtime
