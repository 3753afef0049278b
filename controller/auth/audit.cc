#include "controller/auth/audit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "nlohmann/json.hpp"

namespace titan::auth {
namespace {

constexpr size_t kMaxLength = 256;

std::string cut(const std::string& text) {
  return text.size() <= kMaxLength ? text : text.substr(0, kMaxLength) + "...";
}

absl::Status put(int fd, const std::string& line, const std::string& path) {
  const ssize_t wrote = write(fd, line.data(), line.size());
  if (wrote == static_cast<ssize_t>(line.size())) return absl::OkStatus();
  return errno_status(wrote < 0 ? errno : ENOSPC, absl::StrCat("write the audit log ", path));
}

}  // namespace

std::string to_line(const AuditEntry& entry) {
  const nlohmann::ordered_json json = {
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", entry.time, absl::UTCTimeZone())},
      {"actor", entry.actor},
      {"peer", entry.peer},
      {"method", entry.method},
      {"resource", cut(entry.resource)},
      {"request_id", cut(entry.request_id)},
      {"result", entry.result}};
  return json.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::unique_ptr<Audit>> Audit::open(const std::string& path, Limits limits,
                                                   std::shared_ptr<journal::Journal> journal) {
  std::unique_ptr<Audit> audit(new Audit(path, limits, std::move(journal)));
  sync::Lock lock(audit->mutex_);
  TITAN_RETURN_IF_ERROR(audit->reopen());
  return audit;
}

Audit::~Audit() {
  if (fd_ >= 0) close(fd_);
}

absl::Status Audit::reopen() {
  if (fd_ >= 0) close(fd_);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  struct stat about {};
  if (fd_ < 0 || fstat(fd_, &about) != 0) return errno_status(errno, absl::StrCat("open the audit log ", path_));
  if (fchmod(fd_, 0600) != 0) return errno_status(errno, absl::StrCat("chmod the audit log ", path_));
  size_ = about.st_size;
  return absl::OkStatus();
}

absl::Status Audit::rotate() {
  for (int i = limits_.files - 1; i > 0; --i) {
    const std::string from = i == 1 ? path_ : absl::StrCat(path_, ".", i - 1);
    if (rename(from.c_str(), absl::StrCat(path_, ".", i).c_str()) != 0 && errno != ENOENT)
      return errno_status(errno, absl::StrCat("rotate the audit log ", from));
  }
  return reopen();
}

void Audit::write(const AuditEntry& entry) {
  const std::string line = to_line(entry) + "\n";
  sync::Lock lock(mutex_);
  absl::Status done;
  if (fd_ < 0 || size_ + static_cast<int64_t>(line.size()) > limits_.bytes) done = size_ > 0 ? rotate() : reopen();
  if (done.ok()) done = put(fd_, line, path_);
  if (done.ok()) size_ += static_cast<int64_t>(line.size());
  if (std::exchange(complained_, !done.ok()) || done.ok() || journal_ == nullptr) return;
  journal_->write(journal::Level::kError, "AuditNotWritten",
                  absl::StrCat(done.message(), "; calls are missing from the audit log until this is fixed"));
}

}  // namespace titan::auth
