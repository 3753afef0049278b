#include "worker/node/daemon/rank_answers.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/host/descriptor.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"
#include "common/rank_protocol/flight_tail.h"
#include "common/rank_protocol/rank_files.h"
#include "common/rank_protocol/spool.h"
#include "worker/node/daemon/run_folder.h"

namespace titan::daemon {
namespace {

void add_flight(const rank_protocol::RankFlight& flight, int max_calls, v1::RankDiagnosis& to) {
  for (const rank_protocol::FlightGroup& group : flight.groups) {
    v1::FlightGroup* const added = to.add_groups();
    added->set_name(group.name);
    added->set_members(group.members);
    added->set_key(group.key);
    added->set_issued(group.issued);
  }
  size_t at = 0;
  if (max_calls > 0) at = flight.calls.size() - std::min(flight.calls.size(), static_cast<size_t>(max_calls));
  for (; at < flight.calls.size(); ++at) {
    const rank_protocol::FlightCall& call = flight.calls[at];
    v1::FlightCall* const added = to.add_calls();
    added->set_group(call.group);
    added->set_sequence(call.sequence);
    added->set_operation(call.operation);
    added->set_type(call.type);
    added->set_elements(call.elements);
    added->set_mark(call.mark);
    added->set_since_mark(call.since_mark);
    added->set_created_nanoseconds(call.created_ns);
    added->set_completed(call.state == rank_protocol::CallState::kCompleted);
    added->set_posted(call.state == rank_protocol::CallState::kPosted);
    added->set_inside(call.state == rank_protocol::CallState::kInside);
  }
}

}  // namespace

std::vector<v1::Diagnosis> answer_diagnosis(const node::AnswerDiagnosis& question, const std::string& run_folder,
                                            const std::string& rank_folder) {
  std::vector<v1::Diagnosis> answers;
  for (const node::AnswerDiagnosis::Rank& rank : question.ranks) {
    v1::Diagnosis& answer = answers.emplace_back();
    *answer.mutable_id() = question.request.id();
    v1::RankDiagnosis& to = *answer.mutable_rank();
    *to.mutable_status() = rank.status;
    to.set_alive(rank.alive);
    const int number = rank.status.rank();
    const auto flight = rank_protocol::read_flight_tail(rank_protocol::flight_tail_path(rank_folder, number));
    if (flight.ok()) {
      add_flight(*flight, question.request.most_calls(), to);
    } else {
      to.set_flight_missing(absl::IsNotFound(flight.status()) ? "it recorded none" : text_of(flight.status()));
    }
    const absl::StatusOr<std::string> stacks =
        rank_protocol::read_rank_file(rank_protocol::stacks_path(run_folder, number), rank_protocol::kStacksBytes);
    if (stacks.ok()) {
      to.set_stacks(text::valid_utf8(*stacks));
    } else if (!absl::IsNotFound(stacks.status())) {
      to.set_stacks_missing(text_of(stacks.status()));
    } else {
      to.set_stacks_missing(rank.alive ? question.stacks_missing : "it had ended");
    }
  }
  if (answers.empty()) *answers.emplace_back().mutable_id() = question.request.id();
  answers.back().set_end(true);
  return answers;
}

namespace {

namespace fs = std::filesystem;
using rank_protocol::TraceRequest;
using rank_protocol::TraceState;

constexpr int64_t kMaxPiece = 1 << 20;

void fail(v1::TraceData* answer, const char* reason, const std::string& message) {
  answer->set_error_reason(reason);
  answer->set_error_message(message);
}

// Reads a piece of the file. Leaves `answer` unchanged if the file does not exist. Errors: those of reading.
absl::Status read_piece(const std::string& path, const v1::ReadTrace& request, v1::TraceData* answer) {
  const absl::StatusOr<int> opened = rank_protocol::open_rank_file(path, O_RDONLY);
  if (absl::IsNotFound(opened.status())) return absl::OkStatus();
  if (!opened.ok()) return opened.status();
  const host::Descriptor file(*opened);
  const int64_t size = ::lseek(file.get(), 0, SEEK_END);
  if (size < 0) return errno_status(errno, absl::StrCat("read ", path));
  const int64_t wanted = request.max_bytes() > 0 ? std::min(request.max_bytes(), kMaxPiece) : kMaxPiece;
  const int64_t offset = std::clamp<int64_t>(request.offset(), 0, size);
  std::string data(static_cast<size_t>(std::min(wanted, size - offset)), '\0');
  const ssize_t got = ::pread(file.get(), data.data(), data.size(), offset);
  if (got < 0) return errno_status(errno, absl::StrCat("read ", path));
  data.resize(static_cast<size_t>(got));
  answer->set_state(v1::TraceData::WRITTEN);
  answer->set_total_bytes(size);
  answer->set_offset(offset);
  answer->set_data(std::move(data));
  return absl::OkStatus();
}

// A run folder keeps one trace per rank; the next one replaces it.
void remove_traces(const std::string& run_folder, int rank) {
  const std::string prefix = absl::StrCat("rank-", rank, ".trace-");
  std::error_code error;
  for (const auto& item : fs::directory_iterator(run_folder, error)) {
    std::error_code ignored;
    if (item.path().filename().string().rfind(prefix, 0) == 0) fs::remove(item.path(), ignored);
  }
}

bool is_done(TraceState state) { return state == TraceState::kWritten || state == TraceState::kFailed; }

v1::TraceData::State to_proto(TraceState state) {
  switch (state) {
    case TraceState::kWaiting:
      return v1::TraceData::WAITING;
    case TraceState::kRecording:
      return v1::TraceData::RECORDING;
    case TraceState::kWriting:
    case TraceState::kWritten:  // The file was completed after this request looked for it.
    case TraceState::kFailed:
      return v1::TraceData::WRITING;
  }
  return v1::TraceData::STATE_UNSPECIFIED;
}

// Returns the state of the requested trace; requests it if the rank is free.
void ask_rank(const v1::ReadTrace& request, const std::string& run_folder, rank_protocol::BeaconReader& beacon,
              v1::TraceData* answer) {
  const TraceRequest& words = beacon.page().trace;
  const std::string who = absl::StrCat("rank ", request.rank());
  if (words.takes_requests.load() == 0) {
    return fail(answer, "NO_PROFILER",
                absl::StrCat(who,
                             " accepts no requests for traces: its program is older than this worker, or it "
                             "shares a process with rank 0, and then only rank 0 can be recorded "
                             "(comm.mode = \"local_tensor\")"));
  }
  const uint64_t asked = words.request.load();
  const bool taken = words.taken.load() == asked;
  const auto state = static_cast<TraceState>(words.state.load());
  if (asked == request.trace()) {
    answer->set_state(taken ? to_proto(state) : v1::TraceData::WAITING);
    answer->set_first_step(taken ? words.recorded_first.load() : words.first_step.load());
    answer->set_last_step(taken ? words.recorded_last.load() : words.first_step.load() + words.steps.load() - 1);
    if (!taken || !is_done(state)) return;
    std::error_code error;
    if (fs::exists(fs::symlink_status(rank_protocol::trace_path(run_folder, request.rank(), request.trace()), error)))
      return;
    return fail(answer, "TRACE_NOT_WRITTEN",
                absl::StrCat(who, " recorded steps ", answer->first_step(), " to ", answer->last_step(),
                             ", but its trace is missing: is the disk of its node full? See its log"));
  }
  if (asked != 0 && !(taken && is_done(state))) {
    return fail(answer, "TRACE_IN_PROGRESS",
                absl::StrCat(who, " is to record ", words.steps.load(), " steps from step ", words.first_step.load(),
                             " for another request: try again after them"));
  }
  if (request.steps() <= 0) return;
  remove_traces(run_folder, request.rank());
  absl::Status asking = beacon.write(words.first_step, request.first_step());
  asking.Update(beacon.write(words.steps, request.steps()));
  if (asking.ok()) asking = beacon.write(words.request, request.trace());
  if (!asking.ok())
    return fail(answer, "NO_PROFILER", absl::StrCat(who, " does not accept requests: ", asking.message()));
  answer->set_state(v1::TraceData::WAITING);
  answer->set_first_step(request.first_step());
  answer->set_last_step(request.first_step() + request.steps() - 1);
}

}  // namespace

// Collectives count, too: they show progress during a long validation or microbatch.
int64_t progress_of(const rank_protocol::BeaconPage& page) {
  return static_cast<int64_t>(page.counter.load()) + page.collective_seq.load();
}

void answer_trace(const node::AnswerTrace& question, const std::string& run_folder, v1::TraceData* answer) {
  const v1::ReadTrace& request = question.request;
  std::unique_ptr<rank_protocol::BeaconReader> beacon;
  if (question.known) {
    auto opened = rank_protocol::BeaconReader::open(rank_protocol::beacon_path(run_folder, request.rank()));
    if (opened.ok()) beacon = *std::move(opened);
  }
  const absl::Status read =
      read_piece(rank_protocol::trace_path(run_folder, request.rank(), request.trace()), request, answer);
  if (beacon != nullptr) {
    const rank_protocol::BeaconPage& page = beacon->page();
    answer->set_step(page.step.load());
    answer->set_step_nanoseconds(page.step_nanos.load());
    answer->set_phase(rank_protocol::name(static_cast<rank_protocol::Phase>(page.phase.load())));
    answer->set_counter(progress_of(page));
    const bool written = answer->state() == v1::TraceData::WRITTEN;
    if (written && page.trace.taken.load() == request.trace()) {
      answer->set_first_step(page.trace.recorded_first.load());
      answer->set_last_step(page.trace.recorded_last.load());
    }
  }
  if (!read.ok()) return fail(answer, "TRACE_NOT_READ", std::string(read.message()));
  if (answer->state() == v1::TraceData::WRITTEN) return;
  if (question.gone || beacon == nullptr) {
    return fail(answer, "RANK_GONE",
                absl::StrCat("rank ", request.rank(),
                             question.gone ? " ended before it had written its trace" : " has not begun to train"));
  }
  ask_rank(request, run_folder, *beacon, answer);
}

v1::TraceData refuse_trace(const v1::ReadTrace& request) {
  v1::TraceData answer;
  fail(&answer, "BAD_REQUEST",
       absl::StrCat("read trace: the job uid ('", request.id().job_uid(), "') or the trace (", request.trace(),
                    ") is not valid"));
  return answer;
}

}  // namespace titan::daemon
