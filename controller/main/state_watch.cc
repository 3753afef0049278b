#include "controller/main/state_watch.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"

namespace titan {
namespace {

constexpr int64_t kMinSpace = 1 << 20;                  // Enough for a few hundred changes.
constexpr absl::Duration kTimeout = absl::Seconds(10);  // Limit for a disk that does not answer.

}  // namespace

absl::StatusOr<std::unique_ptr<StateWatch>> StateWatch::begin(const std::string& folder,
                                                              std::function<void()> check_files,
                                                              std::shared_ptr<journal::Journal> journal) {
  TITAN_ASSIGN_OR_RETURN(storage::FolderGuard guard, storage::FolderGuard::open(folder, {}));
  return std::unique_ptr<StateWatch>(new StateWatch(std::move(guard), std::move(check_files), std::move(journal)));
}

StateWatch::StateWatch(storage::FolderGuard guard, std::function<void()> check_files,
                       std::shared_ptr<journal::Journal> journal)
    : guard_(std::move(guard)), check_files_(std::move(check_files)), journal_(std::move(journal)) {
  thread_ = std::thread([this] { run(); });
}

StateWatch::~StateWatch() {
  {
    const sync::Lock lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void StateWatch::run() {
  while (true) {
    {
      const sync::Lock lock(mutex_);
      if (ending_) return;
      began_ = absl::Now();
    }
    look();
    sync::Lock lock(mutex_);
    began_ = absl::InfiniteFuture();
    if (!ending_) wake_.wait_for(mutex_, std::chrono::seconds(1));
  }
}

void StateWatch::look() {
  check_files_();
  absl::Status status = guard_.check_same();
  if (status.ok()) status = guard_.check_writable(kMinSpace);
  const std::string now(status.message());
  std::string before;
  {
    const sync::Lock lock(mutex_);
    before = std::exchange(problem_, now);
  }
  if (now.empty() == before.empty()) return;
  if (now.empty()) {
    journal_->write(journal::Level::kInfo, "StateFolderUsable", "the state folder can be written again");
  } else {
    journal_->write(journal::Level::kError, "StateFolderUnusable",
                    absl::StrCat(now, "; requests that change something are refused, ranks keep running"));
  }
}

std::string StateWatch::problem() const {
  const sync::Lock lock(mutex_);
  if (absl::Now() - began_ > kTimeout)
    return absl::StrCat("the disk of the state folder ", guard_.folder(), " does not answer");
  return problem_;
}

}  // namespace titan
