#include "common/io/hub/download.h"

#include <fcntl.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/sync/sync.h"
#include "common/base/text/message_text.h"
#include "common/base/text/quantities.h"
#include "common/io/hub/names.h"
#include "common/io/hub/part_file.h"
#include "common/io/hub/verification.h"

namespace titan::hub {
namespace {

constexpr int64_t kSpare = int64_t{1} << 20;  // For records and the file system's own needs.

using Checking = std::function<void(const RemoteFile&)>;

// Returns whether the file in the folder is the hub's.
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

int64_t DownloadPlan::size() const {
  int64_t sum = 0;
  for (const PlannedFile& file : files) sum += file.remote.size;
  return sum;
}

int64_t DownloadPlan::left() const {
  int64_t sum = 0;
  for (const PlannedFile& file : files) sum += file.left();
  return sum;
}

absl::StatusOr<DownloadPlan> make_plan(const Folder& folder, std::vector<RemoteFile> files, const std::string& commit,
                                       Inventory& inventory, const Checking& checking, const std::stop_token& stop) {
  std::stable_sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.size < b.size; });
  DownloadPlan plan{commit, {}};
  for (RemoteFile& remote : files) {
    if (is_reserved_name(remote.name))
      return absl::InvalidArgumentError(absl::StrCat("a file ", text::printable_name(remote.name),
                                                     " cannot be stored here: its name is too long, or "
                                                     "reserved for downloads; leave it out with --exclude"));
    PlannedFile file;
    TITAN_ASSIGN_OR_RETURN(file.done, is_done(folder, remote, inventory, checking, stop));
    if (!file.done) file.there = recorded_parts(folder, remote);
    file.remote = std::move(remote);
    plan.files.push_back(std::move(file));
  }
  return plan;
}

absl::Status check_space(const Folder& folder, const DownloadPlan& plan) {
  const int64_t left = plan.left();
  if (left == 0) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const int64_t there, folder.free_bytes());
  if (there >= left + kSpare) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(folder.path(), " has ", mebibytes(there), " free, and ", mebibytes(left),
                   " are left to download: free some space, or name a folder on another disk with "
                   "--local-dir"));
}

namespace {

constexpr int kMaxRestarts = 1;  // How often a file with wrong content is downloaded again.

// A file that is not done, with the pieces that no thread has taken yet. The Downloader's lock guards all but `remote`.
struct FileDownload {
  RemoteFile remote;
  std::deque<http::ByteRange> pieces;
  std::unique_ptr<PartFile> part;  // Created with the first piece.
  int active = 0;
  int fresh_starts = 0;
  absl::Status spoiled;  // Not OK: the bytes that arrived are useless.
  bool finishing = false, finished = false;
};

class Downloader {
 public:
  Downloader(const DownloadOptions& transfer, const Folder& folder, const DownloadPlan& plan, Inventory& inventory,
             Watcher& watcher)
      : transfer_(transfer), folder_(folder), commit_(plan.commit), inventory_(inventory), watcher_(watcher) {
    for (const PlannedFile& file : plan.files) {
      if (file.done) continue;
      FileDownload& job = jobs_.emplace_back();
      job.remote = file.remote;
      give_pieces(job, file.there.missing(file.remote.size));
    }
  }

  absl::Status run(const std::stop_token& stop) {
    const std::stop_callback pass_on(stop, [this] { stop_.request_stop(); });
    std::vector<std::jthread> threads;
    for (int i = 0; i < transfer_.parallel; ++i) threads.emplace_back([this] { work(); });
    threads.clear();  // Joins them.
    for (FileDownload& job : jobs_) {
      if (job.part && !job.finished) static_cast<void>(job.part->save());
    }
    sync::Lock lock(mutex_);
    if (failed_.ok() && stop.stop_requested()) return absl::CancelledError("interrupted");
    return failed_;
  }

 private:
  // A complete file gets an empty piece, so that a thread finishes it.
  void give_pieces(FileDownload& job, const std::vector<http::ByteRange>& missing) {
    const std::vector<http::ByteRange> pieces = http::cut(missing, transfer_.piece);
    job.pieces.assign(pieces.begin(), pieces.end());
    if (pieces.empty()) job.pieces.push_back({job.remote.size, job.remote.size});
  }

  void work() {
    HubClient client(transfer_.settings, transfer_.retry);
    while (FileDownload* job = next()) {
      const absl::Status status = fetch(client, *job);
      if (!settle(*job, status)) return;
    }
  }

  // Returns a file that has a piece to download, marked active; null when the download ends. Waits while other threads
  // may still give a piece back.
  FileDownload* next() {
    sync::Lock lock(mutex_);
    for (;;) {
      if (!failed_.ok() || stop_.stop_requested()) return nullptr;
      bool busy = false;
      for (FileDownload& job : jobs_) {
        busy = busy || job.active > 0;
        if (job.pieces.empty() || !job.spoiled.ok()) continue;
        ++job.active;
        return &job;
      }
      if (!busy) return nullptr;
      changed_.wait_for(mutex_, std::chrono::milliseconds(200));  // A stop request does not notify it.
    }
  }

  absl::Status fetch(HubClient& client, FileDownload& job) {
    http::ByteRange piece;
    PartFile* part = nullptr;
    {
      sync::Lock lock(mutex_);
      if (job.pieces.empty()) return absl::OkStatus();  // Another thread took the last piece or spoiled the file.
      if (!job.part) {
        TITAN_ASSIGN_OR_RETURN(job.part, PartFile::open(folder_, job.remote));
      }
      part = job.part.get();
      piece = job.pieces.front();
      job.pieces.pop_front();
    }
    if (piece.size() == 0) return absl::OkStatus();
    const HubClient::Receiver receiver{[part](const FileFacts& facts) { return part->accept(facts); },
                                       [this, part](int64_t offset, std::string_view bytes) {
                                         TITAN_RETURN_IF_ERROR(part->write(offset, bytes));
                                         notify_arrived(static_cast<int64_t>(bytes.size()));
                                         return absl::OkStatus();
                                       },
                                       [part] { return part->save_if_due(); }};
    return client.read(transfer_.repo, commit_, job.remote.name, piece, RangeEnd::kKnown, receiver, stop_.get_token());
  }

  void notify_arrived(int64_t bytes) {
    sync::Lock lock(watcher_mutex_);
    watcher_.arrived(bytes);
  }

  // Handles the end of a piece. Returns false after a failure, which ends the download.
  bool settle(FileDownload& job, const absl::Status& status) {
    bool finish = false;
    {
      sync::Lock lock(mutex_);
      const bool useless = absl::IsAborted(status) || absl::IsDataLoss(status);
      if (useless) job.spoiled = status, job.pieces.clear();
      if (!useless && !status.ok()) fail_locked(status);
      --job.active;
      const bool last = job.active == 0 && job.pieces.empty() && failed_.ok() && !job.finished;
      finish = last && (job.spoiled.ok() ? !stop_.stop_requested() : true);
      if (finish) ++job.active;  // Makes other threads wait for the result.
    }
    changed_.notify_all();
    if (finish) close(job);
    sync::Lock lock(mutex_);
    return failed_.ok();
  }

  // Finishes or restarts a file. All its pieces have ended, and only this thread uses it.
  void close(FileDownload& job) {
    absl::Status status = job.spoiled;
    if (status.ok()) status = finish(job);
    if (absl::IsAborted(status) || absl::IsDataLoss(status)) status = restart(job, status);
    {
      sync::Lock lock(mutex_);
      if (!status.ok()) fail_locked(status);
      --job.active;
    }
    changed_.notify_all();
  }

  absl::Status finish(FileDownload& job) {
    TITAN_RETURN_IF_ERROR(job.part->finish(
        [this] { return stop_.stop_requested() ? absl::CancelledError("interrupted") : absl::OkStatus(); }));
    TITAN_ASSIGN_OR_RETURN(const auto about, folder_.find(job.remote.name));
    {
      sync::Lock lock(mutex_);
      job.finished = true;
      job.part.reset();
      if (about) inventory_.add(job.remote, *about);
      TITAN_RETURN_IF_ERROR(inventory_.save(folder_));
    }
    sync::Lock lock(watcher_mutex_);
    watcher_.finished(job.remote);
    return absl::OkStatus();
  }

  absl::Status restart(FileDownload& job, const absl::Status& why) {
    TITAN_ASSIGN_OR_RETURN(const int64_t lost, job.part->reset());
    if (++job.fresh_starts > kMaxRestarts)
      return absl::DataLossError(absl::StrCat(why.message(),
                                              ", even after it was downloaded again: the hub or a mirror has a "
                                              "damaged file; nothing of it was kept"));
    {
      sync::Lock lock(watcher_mutex_);
      watcher_.again(job.remote, lost, why);
    }
    sync::Lock lock(mutex_);
    job.spoiled = absl::OkStatus();
    give_pieces(job, http::Ranges().missing(job.remote.size));
    return absl::OkStatus();
  }

  void fail_locked(const absl::Status& status) TITAN_REQUIRES(mutex_) {
    if (failed_.ok()) failed_ = status;
    stop_.request_stop();
  }

  const DownloadOptions& transfer_;
  const Folder& folder_;
  const std::string commit_;
  Inventory& inventory_;
  Watcher& watcher_;
  sync::Mutex watcher_mutex_;
  sync::Mutex mutex_;
  sync::Condition changed_;
  std::deque<FileDownload> jobs_;
  absl::Status failed_ TITAN_GUARDED_BY(mutex_);
  std::stop_source stop_;
};

}  // namespace

absl::Status download(const DownloadOptions& transfer, const Folder& folder, const DownloadPlan& plan,
                      Inventory& inventory, Watcher& watcher, const std::stop_token& stop) {
  TITAN_RETURN_IF_ERROR(check_space(folder, plan));
  return Downloader(transfer, folder, plan, inventory, watcher).run(stop);
}

}  // namespace titan::hub
