#include "controller/cli/trace_files.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;

std::string unfinished(const std::string& path) { return path + ".part"; }

absl::Status make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return errno_status(error.value(), absl::StrCat("create ", folder));
  return absl::OkStatus();
}

}  // namespace

TraceFiles::TraceFiles(std::string job, std::string folder, const std::vector<int>& ranks)
    : job_(std::move(job)), folder_(std::move(folder)) {
  for (const int rank : ranks) traces_[rank].rank = rank;
}

TraceFiles::~TraceFiles() {
  for (const auto& [rank, trace] : traces_) {
    std::error_code ignored;
    if (!trace.path.empty() && !trace.whole) fs::remove(unfinished(trace.path), ignored);
  }
}

absl::Status TraceFiles::prepare() const { return folder_.empty() ? absl::OkStatus() : make_folder(folder_); }

absl::StatusOr<bool> TraceFiles::take(const v1::TraceChunk& chunk) {
  const auto found = traces_.find(chunk.rank());
  if (found == traces_.end()) {
    return absl::DataLossError(
        absl::StrCat("the controller sent the trace of rank ", chunk.rank(), ", which was not asked for"));
  }
  Trace& trace = found->second;
  if (trace.whole) return false;
  trace.node = chunk.node();
  if (chunk.last_step() > 0) {  // A node that has forgotten the attempt knows its file alone.
    trace.first_step = chunk.first_step();
    trace.last_step = chunk.last_step();
  }
  if (chunk.state() != v1::TraceChunk::WRITTEN) return false;
  if (trace.path.empty()) {
    if (folder_.empty()) folder_ = absl::StrCat(job_, "_iteration_", trace.last_step);
    TITAN_RETURN_IF_ERROR(make_folder(folder_));
    trace.path = absl::StrCat(folder_, "/rank", trace.rank, "_trace.json");
    std::error_code ignored;
    fs::remove(unfinished(trace.path), ignored);  // Of a call that was killed.
  }
  if (chunk.offset() > trace.bytes) {
    return absl::DataLossError(
        absl::StrCat("the trace of rank ", trace.rank, " lacks bytes ", trace.bytes, " to ", chunk.offset()));
  }
  const auto known = static_cast<size_t>(trace.bytes - chunk.offset());
  if (known < chunk.data().size()) TITAN_RETURN_IF_ERROR(append(trace, chunk.data().substr(known)));
  if (trace.bytes < chunk.total_bytes()) return false;
  std::error_code error;
  fs::rename(unfinished(trace.path), trace.path, error);
  if (error) return errno_status(error.value(), absl::StrCat("write ", trace.path));
  trace.whole = true;
  return true;
}

absl::Status TraceFiles::append(Trace& trace, const std::string& data) const {
  const std::string path = unfinished(trace.path);
  std::FILE* const file = std::fopen(path.c_str(), "ab");
  if (file == nullptr) return errno_status(errno, absl::StrCat("write ", path));
  const bool written = std::fwrite(data.data(), 1, data.size(), file) == data.size();
  const int failed = errno;
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed) return errno_status(written ? errno : failed, absl::StrCat("write ", path));
  trace.bytes += static_cast<int64_t>(data.size());
  return absl::OkStatus();
}

}  // namespace titan::cli
