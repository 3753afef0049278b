#include "tests/worker/node/daemon/fake_controller.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/service/rpc/error.h"

namespace titan::daemon {
namespace {

constexpr auto kTimeout = std::chrono::seconds(20);

}  // namespace

FakeController::FakeController() {
  address_ = "127.0.0.1:0";
  start();
}

FakeController::~FakeController() { stop(); }

void FakeController::start() {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (address_ == "127.0.0.1:0") address_ = absl::StrCat("127.0.0.1:", port);
}

void FakeController::stand_by(const std::string& leader) {
  sync::Lock lock(mutex_);
  leader_ = leader;
}

void FakeController::stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

grpc::Status FakeController::Session(grpc::ServerContext*, ServerStream* stream) {
  v1::WorkerMessage message;
  if (!stream->Read(&message) || !message.has_register_()) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "register first");
  }
  const std::string node = message.register_().node();
  {
    sync::Lock lock(mutex_);
    if (!leader_.empty()) {
      ++refused_;
      changed_.notify_all();
      return rpc::to_grpc(rpc::error(absl::StatusCode::kUnavailable, "NOT_LEADER", "stands by", {{"leader", leader_}}));
    }
    nodes_[node].registers.push_back(message.register_());
    const std::string& theirs = message.register_().cluster();
    if (checks_cluster && !theirs.empty() && theirs != cluster) {
      changed_.notify_all();
      return rpc::to_grpc(rpc::error(absl::StatusCode::kFailedPrecondition, "WRONG_CLUSTER", "not of this cluster"));
    }
    v1::ControllerMessage welcome;
    welcome.mutable_welcome()->set_lease_epoch(++epoch_);
    welcome.mutable_welcome()->set_lease_milliseconds(lease_milliseconds);
    welcome.mutable_welcome()->set_cluster(cluster);
    stream->Write(welcome);
    nodes_[node].connected = true;
    streams_[node] = stream;
  }
  changed_.notify_all();
  while (stream->Read(&message)) {
    {
      sync::Lock lock(mutex_);
      take(node, message, stream);
    }
    changed_.notify_all();
  }
  sync::Lock lock(mutex_);
  if (streams_[node] == stream) {
    streams_.erase(node);
    nodes_[node].connected = false;
  }
  changed_.notify_all();
  return grpc::Status::OK;
}

void FakeController::take(const std::string& node, const v1::WorkerMessage& message, ServerStream* stream) {
  Received& received = nodes_[node];
  if (message.has_attempt()) received.reports.push_back(message.attempt());
  if (message.has_log()) received.logs.push_back(message.log());
  if (message.has_trace()) received.traces.push_back(message.trace());
  if (message.has_diagnosis()) received.diagnoses.push_back(message.diagnosis());
  if (message.has_events()) take_events(node, message.events(), stream);
  if (!message.has_beat()) return;
  received.last_beat = message.beat();
  ++received.beats;
  v1::ControllerMessage answer;
  answer.mutable_beat_ack()->set_sequence(message.beat().sequence());
  if (answer_beats) stream->Write(answer);
}

void FakeController::take_events(const std::string& node, const v1::RankEvents& events, ServerStream* stream) {
  if (!acknowledge) return;  // Like a controller that dies before it records them.
  Received& received = nodes_[node];
  std::vector<v1::RankEvent>& kept = received.events[events.rank()];
  for (const v1::RankEvent& event : events.events()) {
    const auto next = static_cast<int64_t>(kept.size()) + 1;
    if (event.sequence() < next) ++received.repeated_events;
    if (event.sequence() > next) ++received.gaps;
    if (event.sequence() == next) kept.push_back(event);
  }
  v1::ControllerMessage answer;
  *answer.mutable_events_ack()->mutable_id() = events.id();
  answer.mutable_events_ack()->set_rank(events.rank());
  answer.mutable_events_ack()->set_sequence(static_cast<int64_t>(kept.size()));
  stream->Write(answer);
}

bool FakeController::send(const std::string& node, const v1::ControllerMessage& message) {
  sync::Lock lock(mutex_);
  const auto found = streams_.find(node);
  return found != streams_.end() && found->second->Write(message);
}

bool FakeController::wait(const std::function<bool()>& done) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kTimeout, done);
}

FakeController::Received FakeController::received(const std::string& node) {
  sync::Lock lock(mutex_);
  return nodes_[node];
}

const v1::AttemptReport* FakeController::last_report(const std::string& node, int attempt) {
  const std::vector<v1::AttemptReport>& reports = nodes_[node].reports;
  for (auto report = reports.rbegin(); report != reports.rend(); ++report) {
    if (report->id().number() == attempt) return &*report;
  }
  return nullptr;
}

}  // namespace titan::daemon
