#include "common/io/hub/plan.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/gibibytes.h"
#include "common/base/text/shown.h"
#include "common/io/hub/checks.h"
#include "common/io/hub/names.h"
#include "common/io/hub/part_file.h"

namespace titan::hub {
namespace {

constexpr int64_t kSpare = int64_t{1} << 20;  // For records, and what a file system needs itself.

using Checking = std::function<void(const RemoteFile&)>;

// Whether the file there is the hub's.
absl::StatusOr<bool> is_done(const Folder& folder, const RemoteFile& remote, Inventory& inventory,
                             const Checking& checking, const std::stop_token& stop) {
  TITAN_ASSIGN_OR_RETURN(const auto about, folder.find(remote.name));
  if (!about || about->st_size != remote.size) return false;
  if (inventory.has(remote, *about)) return true;
  checking(remote);
  TITAN_ASSIGN_OR_RETURN(const host::Descriptor file, folder.open(remote.name, O_RDONLY));
  const absl::Status same = check_content(
      file, remote, [&stop] { return stop.stop_requested() ? absl::CancelledError("interrupted") : absl::OkStatus(); });
  if (absl::IsDataLoss(same)) return false;
  TITAN_RETURN_IF_ERROR(same);
  inventory.add(remote, *about);
  return true;
}

}  // namespace

int64_t Plan::size() const {
  int64_t sum = 0;
  for (const PlannedFile& file : files) sum += file.remote.size;
  return sum;
}

int64_t Plan::left() const {
  int64_t sum = 0;
  for (const PlannedFile& file : files) sum += file.left();
  return sum;
}

absl::StatusOr<Plan> make_plan(const Folder& folder, std::vector<RemoteFile> files, const std::string& commit,
                               Inventory& inventory, const Checking& checking, const std::stop_token& stop) {
  std::stable_sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.size < b.size; });
  Plan plan{commit, {}};
  for (RemoteFile& remote : files) {
    if (is_taken_name(remote.name))
      return absl::InvalidArgumentError(absl::StrCat("a file ", text::shown(remote.name),
                                                     " cannot be kept here: what is called so "
                                                     "belongs to downloads; leave it out with --exclude"));
    PlannedFile file;
    TITAN_ASSIGN_OR_RETURN(file.done, is_done(folder, remote, inventory, checking, stop));
    if (!file.done) file.there = recorded_parts(folder, remote);
    file.remote = std::move(remote);
    plan.files.push_back(std::move(file));
  }
  return plan;
}

absl::Status check_space(const Folder& folder, const Plan& plan) {
  const int64_t left = plan.left();
  if (left == 0) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const int64_t there, folder.free_bytes());
  if (there >= left + kSpare) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(folder.path(), " has ", mebibytes(there), " free, and ",
                                                   mebibytes(left),
                                                   " are to come: free some, or name a folder on another disk with "
                                                   "--local-dir"));
}

}  // namespace titan::hub
