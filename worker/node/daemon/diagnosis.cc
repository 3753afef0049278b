#include "worker/node/daemon/diagnosis.h"

#include <algorithm>

#include "common/base/text/utf8.h"
#include "common/rank_protocol/flight_tail.h"
#include "common/rank_protocol/rank_file.h"
#include "common/rank_protocol/spool.h"
#include "worker/node/daemon/run_folder.h"

namespace titan::daemon {
namespace {

void add_flight(const rank_protocol::RankFlight& flight, int most_calls, v1::RankDiagnosis& to) {
  for (const rank_protocol::FlightGroup& group : flight.groups) {
    v1::FlightGroup* const added = to.add_groups();
    added->set_name(group.name);
    added->set_members(group.members);
    added->set_key(group.key);
    added->set_issued(group.issued);
  }
  size_t at = 0;
  if (most_calls > 0) at = flight.calls.size() - std::min(flight.calls.size(), static_cast<size_t>(most_calls));
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

}  // namespace titan::daemon
