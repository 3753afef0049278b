#include "controller/api/trace_stream.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"

namespace titan::api {
namespace {

using absl::StatusCode;

constexpr int64_t kTracePiece = 1 << 20;
constexpr int kMaxSteps = 100;
constexpr absl::Duration kTimeout = absl::Minutes(2);
// Time from probing the ranks to the last one's beacon. A rank that is reached later records later steps.
constexpr absl::Duration kAskingTakes = absl::Seconds(1);

// Gives the same number for the same request on every controller (FNV-1a).
uint64_t number_of(const std::string& request_id) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : request_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return std::max<uint64_t>(hash, 1);
}

std::shared_ptr<const job::AttemptRecord> find_attempt(const reconcile::JobView& view, int number) {
  for (const auto& attempt : view.attempts) {
    if (attempt->number == number) return attempt;
  }
  return nullptr;
}

std::string node_of(const job::AttemptRecord& attempt, int rank) {
  for (const job::Placement& place : attempt.placements) {
    if (rank >= place.first_rank && rank < place.first_rank + place.num_ranks) return place.node;
  }
  return "";
}

}  // namespace

absl::Status check_profile_request(const v1::ProfileJobRequest& request, const reconcile::JobView& view) {
  if (request.request_id().empty()) return rpc::bad_request("REQUEST_ID_MISSING", {{"request_id", "must be a UUID"}});
  if (request.steps() < 1 || request.steps() > kMaxSteps) {
    return rpc::bad_request("BAD_STEPS",
                            {{"steps", absl::StrCat(request.steps(), " is not between 1 and ", kMaxSteps)}});
  }
  if (request.ranks().empty()) return rpc::bad_request("RANK_NOT_FOUND", {{"ranks", "must name at least one rank"}});
  TITAN_RETURN_IF_ERROR(check_ranks(request.ranks(), view));
  if (request.attempt() != 0 && find_attempt(view, request.attempt()) == nullptr) {
    return no_such_attempt(view, request.attempt());
  }
  return absl::OkStatus();
}

TraceStream::TraceStream(reconcile::Reconciler& reconciler, TraceRouter& router, v1::ProfileJobRequest request)
    : NodeStream(reconciler, router), request_(std::move(request)), trace_(number_of(request_.request_id())) {}

void TraceStream::accept(const absl::StatusOr<reconcile::JobViewPtr>& view) {
  sync::Lock lock(accept_mutex_);
  accepted_ = view;
}

bool TraceStream::open() {
  reconcile::JobViewPtr view;
  {
    sync::Lock lock(accept_mutex_);
    if (!accepted_) return false;
    if (!accepted_->ok()) {
      end(accepted_->status());
      return false;
    }
    view = **accepted_;
  }
  uid_ = view->record->uid;
  attempt_ = request_.attempt() != 0 ? request_.attempt() : view->attempts.back()->number;
  const auto attempt = find_attempt(*view, attempt_);
  const std::set<int> ranks(request_.ranks().begin(), request_.ranks().end());
  for (const int rank : ranks) {
    Source& source = sources_.emplace_back();
    source.rank = rank;
    source.node = node_of(*attempt, rank);
    source.moved = absl::Now();
  }
  return true;
}

void TraceStream::recheck_sources() {
  for (Source& source : sources_) source.idle = false;
}

void TraceStream::refill() {
  if (!opened_ && !(opened_ = open())) return;
  if (asking()) return;
  const bool all_seen = std::all_of(sources_.begin(), sources_.end(), [](const Source& it) { return it.answered; });
  if (first_step_ == 0 && all_seen) plan();
  bool all_closed = true;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const size_t index = (next_ + i) % sources_.size();
    Source& source = sources_[index];
    if (source.closed) continue;
    all_closed = false;
    if (ends_for(source)) return;
    if (source.idle || (first_step_ == 0 && source.answered && source.trouble.empty())) continue;
    next_ = index + 1;
    return ask(index);
  }
  if (all_closed) end(absl::OkStatus());
}

// Chooses the steps of all ranks: those that an earlier call chose, or the next ones that all can still reach.
void TraceStream::plan() {
  int64_t step = 0, slowest = 1;
  for (Source& source : sources_) {
    first_step_ = std::max(first_step_, source.seen.first_step());
    step = std::max(step, source.seen.step());
    slowest = std::max(slowest, source.seen.step_nanoseconds());
    source.idle = false;
  }
  if (first_step_ != 0) return;
  // One step is under way and may end now; those after it begin while the ranks are asked; one more warms up the
  // profiler.
  const int64_t meanwhile = (absl::ToInt64Nanoseconds(kAskingTakes) + slowest - 1) / slowest;
  first_step_ = step + 1 + meanwhile + 2;
}

void TraceStream::ask(size_t index) {
  const Source& source = sources_[index];
  ask_node(index, source.node, [&](int64_t request) {
    v1::ControllerMessage message;
    v1::ReadTrace* read = message.mutable_read_trace();
    read->set_request(request);
    read->mutable_id()->set_job_uid(uid_);
    read->mutable_id()->set_number(attempt_);
    read->set_rank(source.rank);
    read->set_trace(trace_);
    read->set_first_step(first_step_);
    read->set_steps(first_step_ == 0 ? 0 : request_.steps());
    read->set_offset(source.offset);
    read->set_max_bytes(first_step_ == 0 ? 1 : kTracePiece);
    return message;
  });
}

void TraceStream::on_unreachable(size_t index, const std::string& why) {
  Source& source = sources_[index];
  source.idle = true;
  source.trouble = absl::StrCat("node ", source.node, " ", why);
  if (source.answered || why != "does not answer") return;
  end(rpc::error(StatusCode::kFailedPrecondition, "NODE_DOES_NOT_ANSWER",
                 absl::StrCat("node ", source.node, ", which has rank ", source.rank,
                              ", does not answer: is its titan-worker older than the controller, or hanging?"),
                 {{"node", source.node}}));
}

void TraceStream::on_answer(size_t index, const v1::TraceData& answer) {
  Source& source = sources_[index];
  const bool first_answer = !std::exchange(source.answered, true);
  source.trouble.clear();
  source.idle = true;
  if (answer.error_reason() == "RANK_GONE") {
    source.trouble = answer.error_message();
    return;
  }
  if (!answer.error_reason().empty()) {
    return end(rpc::error(StatusCode::kFailedPrecondition, answer.error_reason(), answer.error_message(),
                          {{"rank", absl::StrCat(source.rank)}, {"node", source.node}}));
  }
  const bool new_state = answer.state() != source.seen.state() || answer.first_step() != source.seen.first_step();
  if (first_answer || new_state || answer.step() != source.seen.step() || answer.counter() != source.seen.counter() ||
      !answer.data().empty()) {
    source.moved = absl::Now();
  }
  if (new_state) source.reported = false;
  source.seen = answer;
  source.seen.clear_data();
  if (first_step_ == 0) return;  // It was only probed: its bytes come with the next answer.
  if (answer.state() == v1::TraceData::WRITTEN && answer.offset() == source.offset) {
    source.offset += static_cast<int64_t>(answer.data().size());
    source.idle = false;
    source.closed = source.offset >= answer.total_bytes();
    send_state(source, answer);
  } else if (!std::exchange(source.reported, true)) {
    send_state(source, source.seen);
  }
}

void TraceStream::send_state(const Source& source, const v1::TraceData& answer) {
  v1::TraceChunk chunk;
  chunk.set_state(static_cast<v1::TraceChunk::State>(answer.state()));
  chunk.set_rank(source.rank);
  chunk.set_node(source.node);
  chunk.set_attempt(attempt_);
  chunk.set_step(answer.step());
  chunk.set_first_step(answer.first_step());
  chunk.set_last_step(answer.last_step());
  chunk.set_total_bytes(answer.total_bytes());
  chunk.set_offset(answer.offset());
  chunk.set_data(answer.data());
  add(std::move(chunk));
}

// Ends the stream when this rank's trace cannot come any more or has not moved for too long. Returns whether it did.
bool TraceStream::ends_for(const Source& source) {
  const reconcile::JobViewPtr view = reconciler_.published().find(uid_);
  const auto attempt = view == nullptr ? nullptr : find_attempt(*view, attempt_);
  if (!source.trouble.empty() && (attempt == nullptr || attempt->end_time_ns != 0)) {
    const std::string how = attempt == nullptr ? "" : absl::StrCat(" (", attempt->end_cause, ")");
    end(rpc::error(StatusCode::kAborted, "ATTEMPT_ENDED",
                   absl::StrCat("attempt ", attempt_, " ended", how, " before the trace of rank ", source.rank,
                                " arrived: ", source.trouble),
                   {{"rank", absl::StrCat(source.rank)}, {"node", source.node}}));
    return true;
  }
  const absl::Duration timeout =
      request_.patience_milliseconds() > 0 ? absl::Milliseconds(request_.patience_milliseconds()) : kTimeout;
  const bool waits_for_reader = source.seen.state() == v1::TraceData::WRITTEN && source.trouble.empty();
  if (waits_for_reader || absl::Now() - source.moved <= timeout) return false;
  const std::string what =
      source.trouble.empty() ? absl::StrCat("it is in phase ", source.seen.phase()) : source.trouble;
  end(rpc::error(StatusCode::kDeadlineExceeded, "RANK_DOES_NOT_MOVE",
                 absl::StrCat("rank ", source.rank, " on node ", source.node, " has shown no progress for ",
                              rounded(timeout), " after step ", source.seen.step(), ": ", what),
                 {{"rank", absl::StrCat(source.rank)}, {"node", source.node}}));
  return true;
}

}  // namespace titan::api
