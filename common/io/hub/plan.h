#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/http/ranges.h"
#include "common/io/hub/folder.h"
#include "common/io/hub/inventory.h"
#include "common/io/hub/listing.h"

namespace titan::hub {

struct PlannedFile {
  RemoteFile remote;
  bool done = false;   // It is there, and it is the hub's.
  http::Ranges there;  // Else: what is there of it.

  int64_t left() const { return done ? 0 : remote.size - there.total(); }
};

struct Plan {
  std::string commit;
  std::vector<PlannedFile> files;  // Small ones first: what says what the rest is comes soon.

  int64_t size() const;
  int64_t left() const;
};

// Compares the folder with the files. One that is there and in no inventory is read through, which `checking` is told
// before. Errors: InvalidArgument for a name that cannot be there, Cancelled.
absl::StatusOr<Plan> make_plan(const Folder& folder, std::vector<RemoteFile> files, const std::string& commit,
                               Inventory& inventory, const std::function<void(const RemoteFile&)>& checking,
                               const std::stop_token& stop);

// ResourceExhausted unless the folder's disk has room for what is left.
absl::Status check_space(const Folder& folder, const Plan& plan);

}  // namespace titan::hub
