#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/base/sync/sync.h"
#include "common/io/storage/file.h"
#include "worker/rank/comm/flight_recorder.h"
#include "worker/rank/runtime/failure/failure.h"

namespace titan::runtime {

// The file that a rank of a failed attempt leaves of its last collectives, beside those of the other ranks. Made when
// the attempt begins.
class FlightDump {
 public:
  struct Setup {
    std::shared_ptr<const comm::FlightRecorder> recorder;
    std::string prefix;  // The path is this and the rank's number.
    int rank = 0;
    // Why this attempt may not write into the folder any more, if so. May be null.
    std::function<absl::Status()> admit;
  };

  explicit FlightDump(Setup setup, storage::Files& files = storage::posix_files());

  // Writes the file, whole or not at all, and removes those that ranks of earlier attempts left there. Once: later
  // calls do nothing. Nothing either when there were no collectives. Thread-safe; may take as long as the disk does.
  void write();

  // `failure` with the file's name, for whoever reads it; as it is where write() wrote none or has not come to its end.
  Failure name_in(Failure failure) const;
  absl::Status status() const;  // Why there is none; OK too when there was nothing to write.

 private:
  absl::Status put(const comm::Flight& flight);
  void remove_older();

  const Setup setup_;
  storage::Files& files_;
  const std::string folder_;
  const std::string prefix_;  // Of the names in the folder.
  const std::string path_;
  const std::string unfinished_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  mutable sync::Mutex mutex_;
  bool begun_ TITAN_GUARDED_BY(mutex_) = false;
  bool written_ TITAN_GUARDED_BY(mutex_) = false;
  absl::Status status_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::runtime
