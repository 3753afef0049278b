#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::cli {

// The folder of one `titanctl run`: its private daemons' state and logs, and those of the ranks. It is locked while
// this object lives, so that a later run's cleaning knows that it is in use.
class RunFolder {
 public:
  // Makes `base`/run-XXXXXX. Errors: Internal, naming XDG_CACHE_HOME.
  static absl::StatusOr<std::unique_ptr<RunFolder>> make(const std::string& base);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  // Where the ranks of the last attempt wrote their logs; "" when none began.
  std::string rank_logs() const;
  void remove();
  // Later runs leave it alone.
  void keep();

 private:
  RunFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  const std::string path_;
  const int lock_;
};

// $XDG_CACHE_HOME/titan, else ~/.cache/titan, else, for a user without a home, titan-UID in the folder for temporary
// files, where it must be this user's alone; made when missing. Not the dump folder, which may be a network file
// system, while SQLite needs a local one. Errors: those of the last of them.
absl::StatusOr<std::string> run_base();

// Of runs that failed; a later one removes the rest.
inline constexpr size_t kMostRunFolders = 10;

// Removes folders of runs that ended: of the newest kMostRunFolders those that did so more than a day before `now`, but
// for a few, and all that are older. None that is in use and none that was asked to be kept.
void clean_run_folders(const std::string& base, absl::Time now);

}  // namespace titan::cli
