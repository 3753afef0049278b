#include "controller/cli/profile.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"

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
        absl::StrCat("the controller sent the trace of rank ", chunk.rank(), ", which was not requested"));
  }
  Trace& trace = found->second;
  if (trace.whole) return false;
  trace.node = chunk.node();
  if (chunk.last_step() > 0) {  // A node that has forgotten the attempt knows only its file.
    trace.first_step = chunk.first_step();
    trace.last_step = chunk.last_step();
  }
  if (chunk.state() != v1::TraceChunk::WRITTEN) return false;
  if (trace.path.empty()) {
    if (folder_.empty()) folder_ = absl::StrCat(job_, "_iteration_", trace.last_step);
    TITAN_RETURN_IF_ERROR(make_folder(folder_));
    trace.path = absl::StrCat(folder_, "/rank", trace.rank, "_trace.json");
    std::error_code ignored;
    fs::remove(unfinished(trace.path), ignored);  // Left by a call that was killed.
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

namespace {

std::string steps_text(int64_t first, int64_t last) {
  return first == last ? absl::StrCat("step ", first) : absl::StrCat("steps ", first, " to ", last);
}

// Shows the user what happens; each rank's file is named when it has arrived.
class Progress {
 public:
  void see(const v1::TraceChunk& chunk) {
    if (chunk.state() == v1::TraceChunk::WAITING && !std::exchange(waiting_, true)) {
      note(absl::StrCat("waiting for step ", chunk.first_step(), "; step ", chunk.step(), " is done"));
    }
    if (chunk.state() == v1::TraceChunk::RECORDING && !std::exchange(recording_, true)) {
      note(absl::StrCat("recording ", steps_text(chunk.first_step(), chunk.last_step())));
    }
  }
  static void arrived(const TraceFiles::Trace& trace) {
    note(absl::StrCat("rank ", trace.rank, ": ", steps_text(trace.first_step, trace.last_step), ", ",
                      mebibytes(trace.bytes)));
  }

 private:
  bool waiting_ = false, recording_ = false;
};

nlohmann::ordered_json result_json(const std::string& job, int attempt, const TraceFiles& files) {
  nlohmann::ordered_json traces = nlohmann::ordered_json::array();
  for (const auto& [rank, trace] : files.all()) {
    traces.push_back({{"rank", rank},
                      {"node", trace.node},
                      {"first_step", trace.first_step},
                      {"last_step", trace.last_step},
                      {"bytes", trace.bytes},
                      {"file", trace.path}});
  }
  return {{"job", job}, {"attempt", attempt}, {"folder", files.folder()}, {"traces", std::move(traces)}};
}

// Returns the last part of the job's name, which becomes part of a folder's name.
absl::StatusOr<std::string> id_of(const v1::Job& job) {
  std::string id = job.name().substr(job.name().rfind('/') + 1);
  if (id.empty() || id[0] == '.')
    return absl::DataLossError(absl::StrCat("the controller sent an invalid name of the job: '", job.name(), "'"));
  return id;
}

}  // namespace

int profile(const Globals& globals, const ProfileOptions& options) {
  Interrupt::block_signals();
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto job = client.get_job(options.job);
  if (!job.ok()) return report(job.status());
  const auto id = id_of(*job);
  if (!id.ok()) return report(id.status());
  TraceFiles files(*id, options.folder, options.ranks);
  if (const absl::Status made = files.prepare(); !made.ok()) return report(made);

  Stopper stopper;
  const Interrupt interrupt([&stopper](int) { stopper.cancel(); });
  Progress progress;
  absl::Status trouble;
  v1::ProfileJobRequest request;
  request.set_name(job->name());
  request.set_request_id(make_request_id());
  request.mutable_ranks()->Assign(options.ranks.begin(), options.ranks.end());
  request.set_steps(options.steps);
  if (globals.timeout_given) request.set_patience_milliseconds(absl::ToInt64Milliseconds(globals.timeout));
  const absl::Status status = follow_stream<v1::TraceChunk>(
      client, absl::InfiniteFuture(), stopper,
      [&](grpc::ClientContext& context) { return client.jobs().ProfileJob(&context, request); },
      [&](const v1::TraceChunk& chunk) {
        request.set_attempt(chunk.attempt());  // After a lost connection it still requests that attempt's trace.
        progress.see(chunk);
        const absl::StatusOr<bool> whole = files.take(chunk);
        trouble = whole.status();
        if (!whole.ok() || !*whole) return !whole.ok();
        const TraceFiles::Trace& trace = files.of(chunk.rank());
        Progress::arrived(trace);
        return globals.format == OutputFormat::kTable && !print(trace.path + "\n");
      });
  if (absl::IsCancelled(status)) {
    note(absl::StrCat("\njob ", *id, " keeps running; what its ranks record stays on their nodes"));
    return kExitInterrupted;
  }
  if (!trouble.ok()) return report(trouble);
  if (absl::IsUnimplemented(status)) {
    return report(absl::UnimplementedError(
        absl::StrCat("the controller at ", client.address(), " is older than this titanctl: it cannot profile a job")));
  }
  if (!status.ok()) return report(status);
  note("https://ui.perfetto.dev shows them");
  if (globals.format != OutputFormat::kTable) print(result_json(*id, request.attempt(), files), globals.format);
  return kExitOk;
}

}  // namespace titan::cli
