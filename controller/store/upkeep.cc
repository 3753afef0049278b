// Room and copies.

#include <unistd.h>

#include <future>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/service/failpoint/failpoint.h"
#include "controller/store/connection.h"

namespace titan::store {
namespace {

failpoint::Point fold_point("store.fold"), folded_point("store.folded");

}  // namespace

absl::Status SqliteStore::run(const std::function<absl::Status()>& task) {
  std::promise<absl::Status> done;
  const bool posted = writer_->post([&] {
    const absl::Status status = task();
    if (absl::IsInternal(status)) writer_->fail(status);  // As for what is committed: nothing is tried again.
    done.set_value(status);
  });
  return posted ? done.get_future().get() : absl::UnavailableError("store: closing");
}

absl::StatusOr<int64_t> SqliteStore::pragma(const char* query) {
  TITAN_ASSIGN_OR_RETURN(Statement read, Statement::prepare(write_->database.get(), query));
  TITAN_RETURN_IF_ERROR(read.step().status());
  return read.integer(0);
}

absl::Status SqliteStore::shrink() {
  constexpr char kStep[] = "PRAGMA incremental_vacuum(1000)";
  bool more = true;
  while (more) {
    TITAN_RETURN_IF_ERROR(run([&]() -> absl::Status {
      TITAN_RETURN_IF_ERROR(in_transaction([&] { return compact(0); }));
      more = meta_.compacted_row < meta_.last_row && !stuck_;
      return absl::OkStatus();
    }));
  }
  for (int64_t left = 1, before = 0; left > 0 && left != before;) {
    TITAN_RETURN_IF_ERROR(run([&]() -> absl::Status {
      before = left;
      TITAN_RETURN_IF_ERROR(execute(write_->database.get(), kStep));
      TITAN_ASSIGN_OR_RETURN(left, pragma("PRAGMA freelist_count"));
      return absl::OkStatus();
    }));
  }
  return run([this] { return execute(write_->database.get(), "PRAGMA wal_checkpoint(TRUNCATE)"); });
}

// The log goes into the database file. Without room it stays as it is; after another error nothing may go on.
absl::Status SqliteStore::fold_log() {
  fold_point.pass();
  const absl::Status folded = execute(write_->database.get(), "PRAGMA wal_checkpoint(PASSIVE)");
  folded_point.pass();
  return absl::IsResourceExhausted(folded) || absl::IsUnavailable(folded) ? absl::OkStatus() : folded;
}

// So that the file is not minutes old and the log does not grow; and of the room that is free, when it is much, some
// goes back.
void SqliteStore::idle() {
  constexpr int64_t kFew = 1000;
  const absl::StatusOr<int64_t> free = pragma("PRAGMA freelist_count"), pages = pragma("PRAGMA page_count");
  absl::Status status;
  if (free.ok() && pages.ok() && *free > std::max(kFew, *pages / 4)) {
    status = execute(write_->database.get(), "PRAGMA incremental_vacuum(1000)");
  }
  if (!absl::IsInternal(status)) status = fold_log();
  if (absl::IsInternal(status)) writer_->fail(status);
}

absl::StatusOr<StoreInfo> SqliteStore::back_up(const std::string& copy) const {
  absl::StatusOr<StoreInfo> made = copy_store(path_, copy);
  if (!absl::IsDataLoss(made.status())) return made;
  TITAN_RETURN_IF_ERROR(check().status());
  auto* self = const_cast<SqliteStore*>(this);  // NOLINT(cppcoreguidelines-pro-type-const-cast): waits, nothing more.
  TITAN_RETURN_IF_ERROR(self->run([] { return absl::OkStatus(); }));
  if (::truncate(copy.c_str(), 0) != 0) return errno_status(errno, absl::StrCat("truncate ", copy));
  return copy_store(path_, copy);
}

}  // namespace titan::store
