#pragma once

// Many workers in one process, over real streams: they register, beat once per second and follow the controller's
// messages, without ranks. A broken stream is opened again, with the node's attempts as its inventory.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "tests/bench/scale/figures.h"
#include "titan/v1/worker.grpc.pb.h"

namespace titan::scale {

struct FleetOptions {
  std::string controller;
  int workers = 100;
  int devices = 8;
  int channels = 8;
  bool beats_show_steps = true;  // Ranks advance a step with every beat.
};

class Fleet {
 public:
  explicit Fleet(const FleetOptions& options);
  ~Fleet();

  // Opens all streams. The workers then start to beat.
  void connect();

  int size() const { return static_cast<int>(nodes_.size()); }
  // Returns the number of nodes that have been welcomed at least `times`.
  int welcomed(int times) const;
  // Parts of attempts that were started and have not ended.
  int started() const { return started_; }
  int64_t beats() const { return beats_; }
  int64_t acks() const { return acks_; }
  int64_t disconnects() const { return disconnects_; }
  int64_t stops() const { return stops_; }
  Latencies& ack_latencies() { return ack_latencies_; }
  // Prepare messages of attempts with this number: how many, and when the first and the last came.
  struct Prepared {
    int count = 0;
    absl::Time first, last;
  };
  Prepared prepared(int attempt) const;
  absl::Time first_disconnect() const;
  absl::Time last_exit() const;  // When the last rank's exit was reported.

  // Makes every rank of every started part exit within `spread`, the first by SIGKILL, the others with an error. Each
  // exit is a separate report. Ranks that receive a stop before that exit because of it.
  void fail_all(absl::Duration spread);
  // Reports a finished step by the leader of node `index`'s attempt. Returns false if the node has no attempt.
  bool tell_step(int index, int64_t step);

 private:
  class Stream;
  struct Held {
    v1::AttemptId id;
    std::vector<int> ranks;
    bool leader = false;
    v1::AttemptReport::Phase phase = v1::AttemptReport::PREPARED;
    int64_t counter = 0;
    int64_t sent_lines = 0;  // Lines of rank 0's spool.
  };
  struct Node {
    std::string name;
    int index = 0;
    std::mutex mutex;
    std::shared_ptr<Stream> stream;  // Null: to be opened at `connect_at`.
    absl::Time connect_at, sent_at;
    int welcomes = 0;
    int64_t lease_epoch = 0, sequence = 0;
    std::map<std::string, Held> attempts;  // Keyed by uid and number.
  };

  void run();
  void open(Node& node);
  void beat(Node& node);
  void on_message(Node& node, const v1::ControllerMessage& message);
  void lost(Node& node);
  void send_all(const std::shared_ptr<Stream>& stream, std::vector<v1::WorkerMessage> messages);
  static v1::WorkerMessage hello(const Node& node, const FleetOptions& options);

  const FleetOptions options_;
  std::vector<std::unique_ptr<v1::WorkerService::Stub>> stubs_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::atomic<bool> ending_ = false;
  std::atomic<int> started_ = 0;
  std::atomic<int64_t> beats_ = 0, acks_ = 0, disconnects_ = 0, stops_ = 0;
  Latencies ack_latencies_;
  mutable std::mutex mutex_;
  std::map<int, Prepared> prepared_;
  absl::Time first_disconnect_ = absl::InfiniteFuture(), last_exit_ = absl::InfinitePast();
  std::thread thread_;
};

}  // namespace titan::scale
