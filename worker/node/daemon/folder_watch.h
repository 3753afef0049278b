#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/service/metrics/folder_space.h"
#include "worker/node/daemon/lane.h"

namespace titan::daemon {

// Looks at the room in folders, beside the loop: one whose storage hangs keeps its own kind from being seen, and nobody
// else waiting.
class FolderWatch {
 public:
  explicit FolderWatch(std::shared_ptr<metrics::FolderSpace> space) : space_(std::move(space)) {}

  // The state folder is on a local disk, dump folders may be anywhere.
  void look(const std::string& state, const std::set<std::string>& dumps);

 private:
  struct Look {
    Lane lane{std::chrono::milliseconds(100)};
    std::shared_ptr<std::atomic<bool>> busy = std::make_shared<std::atomic<bool>>(false);
  };
  void look(Look& look, const std::string& kind, const std::set<std::string>& folders);

  const std::shared_ptr<metrics::FolderSpace> space_;
  Look state_, dumps_;
};

}  // namespace titan::daemon
