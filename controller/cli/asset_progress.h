#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "common/io/hub/download.h"

namespace titan::cli {

// Tells of a download on stderr: one line that changes, on a terminal; a line for each file elsewhere.
class AssetProgress : public hub::Watcher {
 public:
  explicit AssetProgress(bool quiet);

  void waiting(const std::string& folder) override;
  void checking(const hub::RemoteFile& file) override;
  void planned(const hub::Plan& plan) override;
  void arrived(int64_t bytes) override;
  void finished(const hub::RemoteFile& file) override;
  void again(const hub::RemoteFile& file, int64_t lost, const absl::Status& why) override;
  void retrying(const absl::Status& why, absl::Duration wait);  // On any thread.

  int64_t bytes();
  void end();  // Leaves no half line.

 private:
  void draw(absl::Time now) TITAN_REQUIRES(mutex_);
  void clear() TITAN_REQUIRES(mutex_);
  void say(const std::string& line);

  const bool quiet_, terminal_;
  sync::Mutex mutex_;
  bool drawn_ = false;
  int64_t there_ = 0, size_ = 0, arrived_ = 0;
  double rate_ = 0;  // Bytes a second, smoothed over some seconds.
  int64_t last_arrived_ = 0;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace titan::cli
