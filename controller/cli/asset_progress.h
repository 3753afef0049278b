#pragma once

// Reports a download's progress on stderr.

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "common/base/text/quantities.h"
#include "common/io/hub/download.h"

namespace titan::cli {

// Formats a size: "512 B", "3.1 MiB", "31.0 GiB".
inline std::string bytes_text(int64_t bytes) {
  if (bytes < 100 << 10) return absl::StrCat(bytes, " B");
  return bytes < int64_t{1} << 30 ? mebibytes(bytes) : gibibytes(bytes);
}

// Shows a download's progress on stderr: one line that is redrawn on a terminal, a line for each file elsewhere.
class AssetProgress : public hub::Watcher {
 public:
  explicit AssetProgress(bool quiet);

  void waiting(const std::string& folder) override;
  void checking(const hub::RemoteFile& file) override;
  void planned(const hub::DownloadPlan& plan) override;
  void arrived(int64_t bytes) override;
  void finished(const hub::RemoteFile& file) override;
  void again(const hub::RemoteFile& file, int64_t lost, const absl::Status& why) override;
  void retrying(const absl::Status& why, absl::Duration wait);  // May be called on any thread.

  int64_t bytes();
  void end();  // Clears the progress line.

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
