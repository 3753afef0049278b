#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/sync/sync.h"
#include "common/io/storage/folder_guard.h"
#include "common/service/journal/journal.h"

namespace titan {

// Checks the controller's state folder once a second, even while nothing has to be written: whether its files still
// exist, and whether it can be written. Logs a change in the journal. Uses its own thread, since a disk may block.
// Thread-safe.
class StateWatch {
 public:
  // Each check also calls `check_files`. Errors: those of opening the folder.
  static absl::StatusOr<std::unique_ptr<StateWatch>> begin(const std::string& folder, std::function<void()> check_files,
                                                           std::shared_ptr<journal::Journal> journal);
  ~StateWatch();
  StateWatch(const StateWatch&) = delete;
  StateWatch& operator=(const StateWatch&) = delete;

  std::string problem() const;  // Returns why the folder cannot be written; empty: it can.

 private:
  StateWatch(storage::FolderGuard guard, std::function<void()> check_files, std::shared_ptr<journal::Journal> journal);
  void run();
  void look();

  const storage::FolderGuard guard_;
  const std::function<void()> check_files_;
  const std::shared_ptr<journal::Journal> journal_;
  mutable sync::Mutex mutex_;
  sync::Condition wake_;
  bool ending_ TITAN_GUARDED_BY(mutex_) = false;
  // Start of the check that is under way; infinite: none.
  absl::Time began_ TITAN_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::string problem_ TITAN_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace titan
