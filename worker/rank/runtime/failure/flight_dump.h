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

// The file in which a rank of a failed attempt leaves its last collectives, next to those of the other ranks. Created
// when the attempt begins.
class FlightDump {
 public:
  struct Setup {
    std::shared_ptr<const comm::FlightRecorder> recorder;
    std::string prefix;  // The path is this prefix followed by the rank's number.
    int rank = 0;
    // Returns an error if this attempt may no longer write into the folder. May be null.
    std::function<absl::Status()> admit;
  };

  explicit FlightDump(Setup setup, storage::Files& files = storage::posix_files());

  // Writes the file atomically and removes files of earlier attempts' ranks. Only the first call has an effect, and
  // none if there were no collectives. Thread-safe; may take as long as the disk does.
  void write();

  // Returns `failure` with the file's name, for people; unchanged if write() has written none or has not finished.
  Failure name_in(Failure failure) const;
  absl::Status status() const;  // The reason for a missing file. OK if nothing had to be written.

 private:
  absl::Status put(const comm::Flight& flight);
  void remove_older();

  const Setup setup_;
  storage::Files& files_;
  const std::string folder_;
  const std::string prefix_;  // Prefix of the file names in the folder.
  const std::string path_;
  const std::string unfinished_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  mutable sync::Mutex mutex_;
  bool begun_ TITAN_GUARDED_BY(mutex_) = false;
  bool written_ TITAN_GUARDED_BY(mutex_) = false;
  absl::Status status_ TITAN_GUARDED_BY(mutex_);
};

}  // namespace titan::runtime
