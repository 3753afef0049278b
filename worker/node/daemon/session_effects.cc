// Communicates with the controller: sends the core's messages, and answers requests to read an attempt's folders.

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/spool.h"
#include "worker/node/daemon/effects.h"
#include "worker/node/daemon/rank_answers.h"
#include "worker/node/daemon/run_folder.h"
#include "worker/node/shim/log_file.h"

namespace titan::daemon {
namespace {

constexpr int64_t kMaxLogBytes = 1 << 20;

failpoint::Failpoint send_point("worker.send");

// Explains why a rank that will print no more has no log. What a rank wrote stays as long as its folder.
std::string why_no_log(const std::string& run_folder) {
  std::error_code error;
  if (std::filesystem::is_directory(run_folder, error)) return "it never began on this node";
  return "this node has no log of it: it never began here, or its log was deleted for its age or size";
}

v1::LogData read_log(const node::AnswerLog& question, const std::string& run_folder, const StateFolder& state) {
  const v1::ReadLog& request = question.request;
  v1::LogData data;
  data.set_request(request.request());
  absl::StatusOr<shim::LogChunk> chunk = absl::NotFoundError("no such job");
  if (!run_folder.empty()) {
    const int64_t bytes = request.max_bytes() > 0 ? std::min(request.max_bytes(), kMaxLogBytes) : kMaxLogBytes;
    chunk = shim::read_log(rank_protocol::log_path(run_folder, request.rank()), request.offset(), request.tail_lines(),
                           bytes);
  }
  if (chunk.ok()) {
    data.set_offset(chunk->offset);
    data.set_data(std::move(chunk->data));
    data.set_dropped_bytes(chunk->dropped_bytes);
    data.set_end(chunk->end);
    data.set_closed(question.closed && chunk->end);
  } else {
    data.set_end(true);
    data.set_closed(question.closed);
    const absl::Status same = state.check_same();
    if (!absl::IsNotFound(chunk.status())) {
      data.set_error(text_of(chunk.status()));
    } else if (!same.ok()) {
      data.set_unreachable(true);
      data.set_error(absl::StrCat("this log cannot be reached now: ", text_of(same)));
    } else if (!question.closed && !run_folder.empty() && ::access(run_folder.c_str(), F_OK) != 0) {
      data.set_error(absl::StrCat("the run folder ", run_folder, " was deleted or moved away: this log is lost"));
    } else if (question.closed) {
      data.set_error(why_no_log(run_folder));
    }
  }
  return data;
}

}  // namespace

void Daemon::perform(node::Send& effect) {
  send_point.pass();
  if (session_ != nullptr) session_->send(effect.session, std::move(effect.message));
}

void Daemon::perform(node::ResetSession& effect) {
  if (session_ != nullptr) session_->reset(effect.session, effect.why);
}

// Answers a controller's request to read an attempt's folders. Their names are also looked up outside the loop, because
// that reads the disk.
template <typename Read>
void Daemon::answer(int64_t session, Read read) {
  logs_.run([this, post = loop_.poster(), session, read = std::move(read)] {
    post([this, session, messages = std::vector<v1::WorkerMessage>(read())] {
      for (const v1::WorkerMessage& message : messages) {
        if (session_ != nullptr) session_->send(session, message);
      }
    });
  });
}

void Daemon::perform(node::AnswerLog& effect) {
  answer(effect.session, [state = state_, effect] {
    const AttemptKey key = {effect.request.id().job_uid(), effect.request.id().number()};
    std::vector<v1::WorkerMessage> messages(1);
    *messages[0].mutable_log() = read_log(effect, valid_uid(key.job_uid) ? state->run_folder(key) : "", *state);
    return messages;
  });
}

void Daemon::perform(node::AnswerTrace& effect) {
  answer(effect.session, [state = state_, effect] {
    const AttemptKey key = {effect.request.id().job_uid(), effect.request.id().number()};
    std::vector<v1::WorkerMessage> messages(1);
    v1::TraceData& data = *messages[0].mutable_trace();
    if (valid_uid(key.job_uid) && effect.request.trace() != 0) {
      answer_trace(effect, state->rank_folder(key), &data);
    } else {
      data = refuse_trace(effect.request);
    }
    data.set_request(effect.request.request());
    return messages;
  });
}

void Daemon::perform(node::AnswerDiagnosis& effect) {
  answer(effect.session, [state = state_, effect] {
    const AttemptKey key = {effect.request.id().job_uid(), effect.request.id().number()};
    const bool good = valid_uid(key.job_uid);
    std::vector<v1::WorkerMessage> messages;
    for (v1::Diagnosis& one :
         answer_diagnosis(effect, good ? state->run_folder(key) : "", good ? state->rank_folder(key) : "")) {
      *messages.emplace_back().mutable_diagnosis() = std::move(one);
    }
    return messages;
  });
}

}  // namespace titan::daemon
