#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/sync/sync.h"
#include "titan/v1/worker.grpc.pb.h"

namespace titan::daemon {

// A controller's side of WorkerService that records messages and sends what a test requests. It can be stopped and
// started again on the same port, and keeps what a real controller keeps durably: events by sequence.
class FakeController : public v1::WorkerService::Service {
 public:
  FakeController();
  ~FakeController() override;

  const std::string& address() const { return address_; }
  void stop();   // Drops all sessions and closes the port.
  void start();  // Starts on the same port again.

  // Sends on the node's present session; returns false if there is none.
  bool send(const std::string& node, const v1::ControllerMessage& message);
  // Waits up to 20 s for `done`, which is called under the lock after each message.
  bool wait(const std::function<bool()>& done);

  // Recorded messages; read them inside wait() or when no more arrive.
  struct Received {
    std::vector<v1::Register> registers;
    std::vector<v1::AttemptReport> reports;
    std::vector<v1::LogData> logs;
    std::vector<v1::TraceData> traces;
    std::vector<v1::Diagnosis> diagnoses;
    v1::Beat last_beat;
    int beats = 0;
    std::map<int, std::vector<v1::RankEvent>> events;  // By rank; each sequence once.
    int repeated_events = 0;
    int gaps = 0;  // Events that arrived before their predecessor.
    bool connected = false;
  };
  Received received(const std::string& node);
  int refused() const { return refused_; }  // Sessions during stand_by(). Under the lock of wait().
  const v1::AttemptReport* last_report(const std::string& node, int attempt);  // Under the lock of wait().
  Received& of(const std::string& node) { return nodes_[node]; }               // Under the lock of wait().

  std::atomic<bool> acknowledge = true;  // Whether events are acknowledged.
  std::atomic<bool> answer_beats = true;
  std::atomic<int64_t> lease_milliseconds = 5000;
  std::string cluster = "fake";
  // Rejects sessions and names this leader, unless it is empty.
  void stand_by(const std::string& leader);
  std::atomic<bool> checks_cluster = false;  // Rejects workers of another cluster; old controllers do not.

 private:
  using ServerStream = grpc::ServerReaderWriter<v1::ControllerMessage, v1::WorkerMessage>;
  grpc::Status Session(grpc::ServerContext* context, ServerStream* stream) override;
  void take(const std::string& node, const v1::WorkerMessage& message, ServerStream* stream);
  void take_events(const std::string& node, const v1::RankEvents& events, ServerStream* stream);

  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  sync::Mutex mutex_;
  sync::Condition changed_;
  std::map<std::string, Received> nodes_;
  std::map<std::string, ServerStream*> streams_;
  std::string leader_;
  int refused_ = 0;
  int64_t epoch_ = 0;
};

}  // namespace titan::daemon
