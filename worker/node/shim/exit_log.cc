#include "worker/node/shim/exit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/rank_protocol/launch.h"
#include "common/rank_protocol/rank_files.h"
#include "common/rank_protocol/spool.h"
#include "nlohmann/json.hpp"

namespace titan::shim {
namespace {

using nlohmann::json;
using rank_protocol::RankExit;

constexpr char kFile[] = "/exits.jsonl";
constexpr int64_t kReservedPerRank = 4096;
constexpr int64_t kErrorTailBytes = 256 << 10;

// Returns a member that is a string, or "": a rank may have written any type under that name.
std::string text_in(const json& event, const char* name) {
  const auto found = event.find(name);
  return found != event.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace

std::string last_error(const std::string& folder, int rank) {
  // The spool of a long job is large, but only its end matters. An offset inside a line costs only that line.
  const host::Descriptor fd(
      rank_protocol::open_rank_file(rank_protocol::spool_path(folder, rank), O_RDONLY).value_or(-1));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return "";
  const int64_t from = std::max<int64_t>(0, info.st_size - kErrorTailBytes);
  std::string bytes(static_cast<size_t>(info.st_size - from), '\0');
  const ssize_t got = ::pread(fd.get(), bytes.data(), bytes.size(), from);
  if (got <= 0) return "";
  bytes.resize(static_cast<size_t>(got));
  const std::string mark = absl::StrCat("\"kind\":\"", rank_protocol::event::kError, "\"");
  const size_t at = bytes.rfind(mark);
  if (at == std::string::npos) return "";
  const size_t before = bytes.rfind('\n', at);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  const json event = json::parse(bytes.substr(begin, bytes.find('\n', at) - begin), nullptr, false);
  if (!event.is_object()) return "";
  const std::string reason = text_in(event, "reason");
  const std::string message = text_in(event, "message");
  return reason.empty() ? message : absl::StrCat(reason, ": ", message);
}

absl::StatusOr<ExitLog> ExitLog::open(const std::string& run_folder, int num_ranks) {
  const std::string path = run_folder + kFile;
  host::Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) return errno_status(errno, absl::StrCat("open ", path));
  // A file system that cannot reserve blocks still works while there is space.
  (void)::fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, num_ranks * kReservedPerRank);
  return ExitLog(std::move(fd));
}

// Returns whether the file ends within a line: a record appended there would be read as part of that line.
bool ExitLog::is_torn() const {
  struct stat info {};
  char last = 0;
  return ::fstat(fd_.get(), &info) == 0 && info.st_size > 0 && ::pread(fd_.get(), &last, 1, info.st_size - 1) == 1 &&
         last != '\n';
}

absl::Status ExitLog::append(const RankExit& exit) {
  const std::string line = (is_torn() ? "\n" : "") + dump(rank_protocol::exit_to_json(exit)) + "\n";
  ssize_t written = 0;
  do {
    written = ::write(fd_.get(), line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) return absl::OkStatus();
  const int failed = written < 0 ? errno : ENOSPC;
  struct stat info {};
  if (written > 0 && ::fstat(fd_.get(), &info) == 0) (void)!::ftruncate(fd_.get(), info.st_size - written);
  return errno_status(failed, "append to exits.jsonl");
}

absl::Status ExitLog::sync() {
  return ::fdatasync(fd_.get()) == 0 ? absl::OkStatus() : errno_status(errno, "sync exits.jsonl");
}

absl::StatusOr<std::vector<RankExit>> read_exits(const std::string& run_folder, std::string* damage) {
  std::vector<RankExit> records;
  const absl::StatusOr<std::string> text = host::read_file(run_folder + kFile);
  if (absl::IsNotFound(text.status())) return records;
  if (!text.ok()) return text.status();
  int64_t junk = 0;
  for (size_t begin = 0, end = 0; (end = text->find('\n', begin)) != std::string::npos; begin = end + 1) {
    absl::StatusOr<RankExit> record =
        rank_protocol::exit_from_json(json::parse(text->substr(begin, end - begin), nullptr, false));
    if (record.ok()) {
      records.push_back(*std::move(record));
    } else {
      ++junk;
    }
  }
  if (junk > 0 && damage != nullptr) {
    *damage =
        absl::StrCat(run_folder, kFile, " is damaged: ", counted(junk, "line"), " skipped that are not exit records");
  }
  return records;
}

}  // namespace titan::shim
