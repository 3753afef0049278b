#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/terminal.h"
#include "controller/cli/trace_files.h"
#include "controller/cli/watch.h"

namespace titan::cli {
namespace {

std::string steps_text(int64_t first, int64_t last) {
  return first == last ? absl::StrCat("step ", first) : absl::StrCat("steps ", first, " to ", last);
}

// What a person sees while it goes on; each rank's file is named when it is here.
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

// The last part of the job's name; it becomes part of a folder's.
absl::StatusOr<std::string> id_of(const v1::Job& job) {
  std::string id = job.name().substr(job.name().rfind('/') + 1);
  if (id.empty() || id[0] == '.') return absl::DataLossError(absl::StrCat("the job's name is '", job.name(), "'"));
  return id;
}

}  // namespace

int profile(const Globals& globals, const ProfileOptions& options) {
  Interrupt::block_signals();
  Client client(globals.controller, globals.timeout, globals.access);
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
        request.set_attempt(chunk.attempt());  // After a lost connection it is still that one's trace.
        progress.see(chunk);
        const absl::StatusOr<bool> whole = files.take(chunk);
        trouble = whole.status();
        if (!whole.ok() || !*whole) return !whole.ok();
        const TraceFiles::Trace& trace = files.of(chunk.rank());
        Progress::arrived(trace);
        return globals.format == Format::kTable && !print(trace.path + "\n");
      });
  if (absl::IsCancelled(status)) {
    note(absl::StrCat("\njob ", *id, " goes on; what its ranks record stays on their nodes"));
    return kExitInterrupted;
  }
  if (!trouble.ok()) return report(trouble);
  if (absl::IsUnimplemented(status)) {
    return report(absl::UnimplementedError(
        absl::StrCat("the controller at ", client.address(), " is older than this titanctl: it cannot profile a job")));
  }
  if (!status.ok()) return report(status);
  note("https://ui.perfetto.dev shows them");
  if (globals.format != Format::kTable) print(result_json(*id, request.attempt(), files), globals.format);
  return kExitOk;
}

}  // namespace titan::cli
