#include "worker/rank/runtime/failure/flight_dump.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/rank_protocol/flight.h"
#include "worker/rank/comm/flight_pickle.h"

namespace titan::runtime {

FlightDump::FlightDump(Setup setup, storage::Files& files)
    : setup_(std::move(setup)),
      files_(files),
      folder_(std::filesystem::path(setup_.prefix).parent_path()),
      prefix_(std::filesystem::path(setup_.prefix).filename()),
      path_(absl::StrCat(setup_.prefix, setup_.rank)),
      unfinished_(storage::join_path(folder_, absl::StrCat("~", setup_.rank, "~"))) {}

void FlightDump::write() {
  {
    sync::Lock lock(mutex_);
    if (begun_) return;
    begun_ = true;
  }
  absl::Status status;
  bool any = false;
  try {
    const comm::Flight flight = setup_.recorder->flight();
    any = !flight.recordings.empty();
    if (any) status = put(flight);
  } catch (const std::exception& error) {  // Such as out of memory. Must not replace the original failure.
    status = absl::InternalError(error.what());
  }
  sync::Lock lock(mutex_);
  written_ = any && status.ok();
  status_ = status;
}

// Does not use atomic_write(): readers of the folder must not take an incomplete file for a rank's file, and the data
// need not be on disk before the process ends.
absl::Status FlightDump::put(const comm::Flight& flight) {
  if (setup_.admit) TITAN_RETURN_IF_ERROR(setup_.admit());
  const std::string text = comm::to_pickle(flight);
  TITAN_RETURN_IF_ERROR(files_.make_folders(folder_));
  files_.remove(unfinished_).IgnoreError();
  absl::Status status = [&] {
    TITAN_ASSIGN_OR_RETURN(const auto file, files_.create(unfinished_));
    TITAN_RETURN_IF_ERROR(file->append(text));
    TITAN_RETURN_IF_ERROR(file->close());
    return files_.rename(unfinished_, path_);
  }();
  if (status.ok()) {
    remove_older();
  } else {
    files_.remove(unfinished_).IgnoreError();
  }
  return status;
}

// A lost rank writes nothing, so its file of an earlier attempt would look like one of this attempt. Ages are compared
// by the file system's clock.
void FlightDump::remove_older() {
  const auto now = files_.modified(path_);
  const auto names = files_.list(folder_);
  if (!now.ok() || !names.ok()) return;
  const absl::Duration age = absl::FromChrono(std::chrono::steady_clock::now() - began_);
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, prefix_) || name.size() == prefix_.size()) continue;
    if (!std::all_of(name.begin() + static_cast<std::ptrdiff_t>(prefix_.size()), name.end(), absl::ascii_isdigit)) {
      continue;
    }
    const std::string path = storage::join_path(folder_, name);
    const auto then = files_.modified(path);
    if (then.ok() && *now - *then > age && !files_.is_folder(path)) files_.remove(path).IgnoreError();
  }
}

absl::Status FlightDump::status() const {
  sync::Lock lock(mutex_);
  return status_;
}

Failure FlightDump::name_in(Failure failure) const {
  sync::Lock lock(mutex_);
  if (!written_) return failure;
  nlohmann::json members = failure.members();
  members["recording"] = path_;
  const bool by_peer = failure.exit_code() == rank_protocol::kExitPeerLost;
  const std::string where = by_peer ? absl::StrCat(rank_protocol::kRecording, path_) : "";
  return Failure(failure.exit_code(), failure.reason(), failure.what() + where)
      .with_members(std::move(members))
      .with_details(failure.details());
}

}  // namespace titan::runtime
