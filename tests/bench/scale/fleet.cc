#include "tests/bench/scale/fleet.h"

#include <deque>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "grpcpp/grpcpp.h"

namespace titan::scale {
namespace {

constexpr absl::Duration kTurn = absl::Milliseconds(10);
constexpr absl::Duration kBeat = absl::Seconds(1);

std::string key_of(const v1::AttemptId& id) { return absl::StrCat(id.job_uid(), "/", id.number()); }

v1::WorkerMessage report(const v1::AttemptId& id, v1::AttemptReport::Phase phase) {
  v1::WorkerMessage message;
  *message.mutable_attempt()->mutable_id() = id;
  message.mutable_attempt()->set_phase(phase);
  return message;
}

v1::WorkerMessage exit_of(const v1::AttemptId& id, int rank, bool last) {
  v1::WorkerMessage message = report(id, last ? v1::AttemptReport::ENDED : v1::AttemptReport::STARTED);
  v1::RankExitReport* exit = message.mutable_attempt()->add_exits();
  exit->set_rank(rank);
  exit->set_time_unix_nanos(absl::ToUnixNanos(absl::Now()));
  return message;
}

v1::WorkerMessage spool_line(const v1::AttemptId& id, int64_t sequence, std::string json) {
  v1::WorkerMessage message;
  *message.mutable_events()->mutable_id() = id;
  v1::RankEvent* line = message.mutable_events()->add_events();
  line->set_sequence(sequence);
  line->set_json(std::move(json));
  return message;
}

}  // namespace

// One session. It keeps itself alive until OnDone.
class Fleet::Stream final : public grpc::ClientBidiReactor<v1::WorkerMessage, v1::ControllerMessage> {
 public:
  Stream(Fleet& fleet, Node& node) : fleet_(fleet), node_(node) {}

  void begin(const std::shared_ptr<Stream>& self, v1::WorkerService::Stub& stub, v1::WorkerMessage first) {
    self_ = self;
    context_.set_wait_for_ready(true);
    stub.async()->Session(&context_, this);
    AddHold();  // Other threads write, too; the hold lasts until the last read.
    StartRead(&incoming_);
    send(std::move(first));
    StartCall();
  }

  void send(v1::WorkerMessage message) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (ok) {
      fleet_.on_message(node_, incoming_);
      StartRead(&incoming_);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    RemoveHold();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (!ok || closed_) outgoing_.clear();
    if (!outgoing_.empty()) StartWrite(&outgoing_.front());
  }

  void OnDone(const grpc::Status&) override {
    const std::shared_ptr<Stream> self = std::move(self_);
    fleet_.lost(node_);
  }

 private:
  Fleet& fleet_;
  Node& node_;
  grpc::ClientContext context_;
  std::shared_ptr<Stream> self_;
  v1::ControllerMessage incoming_;
  std::mutex mutex_;
  std::deque<v1::WorkerMessage> outgoing_;
  bool closed_ = false;
};

Fleet::Fleet(const FleetOptions& options) : options_(options) {
  for (int i = 0; i < options.channels; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt("titan.channel", i);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs_.push_back(v1::WorkerService::NewStub(
        grpc::CreateCustomChannel(options.controller, grpc::InsecureChannelCredentials(), arguments)));
  }
  for (int i = 0; i < options.workers; ++i) {
    auto node = std::make_unique<Node>();
    node->name = absl::StrFormat("n%05d", i);
    node->index = i;
    nodes_.push_back(std::move(node));
  }
}

Fleet::~Fleet() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
  for (const auto& node : nodes_) {
    const std::lock_guard lock(node->mutex);
    if (node->stream != nullptr) node->stream->cancel();
  }
  wait_until(absl::Seconds(30), [this] {
    return std::all_of(nodes_.begin(), nodes_.end(), [](const auto& node) {
      const std::lock_guard lock(node->mutex);
      return node->stream == nullptr;
    });
  });
}

void Fleet::connect() {
  thread_ = std::thread([this] { run(); });
}

// Beats are spread over the second, as they are between machines.
void Fleet::run() {
  const absl::Time start = absl::Now();
  std::vector<absl::Time> due(nodes_.size());
  for (size_t i = 0; i < due.size(); ++i) {
    due[i] = start + kBeat * static_cast<double>(i) / static_cast<double>(due.size());
  }
  while (!ending_) {
    const absl::Time now = absl::Now();
    for (size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = *nodes_[i];
      bool closed;
      {
        const std::lock_guard lock(node.mutex);
        closed = node.stream == nullptr && now >= node.connect_at;
      }
      if (closed) open(node);
      if (now < due[i]) continue;
      due[i] = std::max(due[i] + kBeat, now);
      beat(node);
    }
    absl::SleepFor(now + kTurn - absl::Now());
  }
}

v1::WorkerMessage Fleet::hello(const Node& node, const FleetOptions& options) {
  v1::WorkerMessage message;
  v1::Register* hello = message.mutable_register_();
  hello->set_node(node.name);
  hello->set_instance(absl::StrCat("instance-", node.index));
  hello->set_address("127.0.0.1");
  hello->set_version("scale");
  hello->mutable_resources()->set_device("cpu");
  hello->mutable_resources()->set_devices(options.devices);
  hello->mutable_resources()->set_cpu_cores(2 * options.devices);
  hello->mutable_resources()->set_memory_bytes(int64_t{1} << 40);
  for (const auto& [key, held] : node.attempts) {
    v1::AttemptInventory* item = hello->add_inventory();
    *item->mutable_id() = held.id;
    item->set_phase(held.phase);
    item->set_devices(static_cast<int>(held.ranks.size()));
    for (const int rank : held.ranks) item->add_ranks()->set_rank(rank);
  }
  return message;
}

void Fleet::open(Node& node) {
  auto stream = std::make_shared<Stream>(*this, node);
  v1::WorkerMessage first;
  {
    const std::lock_guard lock(node.mutex);
    node.stream = stream;
    first = hello(node, options_);
  }
  stream->begin(stream, *stubs_[static_cast<size_t>(node.index) % stubs_.size()], std::move(first));
}

void Fleet::lost(Node& node) {
  const absl::Time now = absl::Now();
  if (!ending_) {
    ++disconnects_;
    const std::lock_guard lock(mutex_);
    first_disconnect_ = std::min(first_disconnect_, now);
  }
  const std::lock_guard lock(node.mutex);
  node.stream = nullptr;
  node.lease_epoch = 0;
  node.connect_at = now + absl::Milliseconds(25 + node.index % 25);
}

void Fleet::beat(Node& node) {
  v1::WorkerMessage message;
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard lock(node.mutex);
    if (node.stream == nullptr || node.lease_epoch == 0) return;
    stream = node.stream;
    v1::Beat* beat = message.mutable_beat();
    beat->set_lease_epoch(node.lease_epoch);
    beat->set_sequence(++node.sequence);
    node.sent_at = absl::Now();
    for (auto& [key, held] : node.attempts) {
      if (held.phase != v1::AttemptReport::STARTED) continue;
      ++held.counter;
      v1::AttemptBeat* item = beat->add_attempts();
      *item->mutable_id() = held.id;
      for (const int rank : held.ranks) {
        v1::RankStatus* status = item->add_ranks();
        status->set_rank(rank);
        status->set_pid(1000 + rank);
        status->set_phase("step");
        status->set_counter(held.counter);
        if (options_.beats_show_steps) status->set_step(held.counter);
      }
    }
  }
  ++beats_;
  stream->send(std::move(message));
}

void Fleet::on_message(Node& node, const v1::ControllerMessage& message) {
  std::vector<v1::WorkerMessage> answers;
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard lock(node.mutex);
    stream = node.stream;
    switch (message.kind_case()) {
      case v1::ControllerMessage::kWelcome:
        node.lease_epoch = message.welcome().lease_epoch();
        ++node.welcomes;
        break;
      case v1::ControllerMessage::kBeatAck:
        ++acks_;
        if (message.beat_ack().sequence() == node.sequence) ack_latencies_.add(absl::Now() - node.sent_at);
        break;
      case v1::ControllerMessage::kPrepare: {
        const v1::Prepare& prepare = message.prepare();
        Held& held = node.attempts[key_of(prepare.id())];
        if (held.ranks.empty()) {
          held.id = prepare.id();
          held.leader = prepare.leader();
          held.ranks.assign(prepare.ranks().begin(), prepare.ranks().end());
        }
        answers.push_back(report(prepare.id(), held.phase));
        if (held.leader) answers.back().mutable_attempt()->set_store_port(29500);
        const std::lock_guard own(mutex_);
        Prepared& prepared = prepared_[prepare.id().number()];
        prepared.last = absl::Now();
        if (prepared.count++ == 0) prepared.first = prepared.last;
        break;
      }
      case v1::ControllerMessage::kStart: {
        const auto found = node.attempts.find(key_of(message.start().id()));
        if (found == node.attempts.end()) break;
        Held& held = found->second;
        if (std::exchange(held.phase, v1::AttemptReport::STARTED) != v1::AttemptReport::STARTED) ++started_;
        answers.push_back(report(held.id, v1::AttemptReport::STARTED));
        if (held.leader && held.sent_lines == 0) {
          answers.push_back(spool_line(held.id, ++held.sent_lines, R"({"kind":"loaded","step":0,"source":"scale"})"));
        }
        break;
      }
      case v1::ControllerMessage::kStop: {
        ++stops_;
        const auto found = node.attempts.find(key_of(message.stop().id()));
        if (found == node.attempts.end()) break;
        Held& held = found->second;
        if (std::exchange(held.phase, v1::AttemptReport::ENDED) != v1::AttemptReport::STARTED) {
          answers.push_back(report(held.id, v1::AttemptReport::ENDED));
          break;
        }
        --started_;
        for (const int rank : held.ranks) {
          answers.push_back(exit_of(held.id, rank, rank == held.ranks.back()));
          v1::RankExitReport& exit = *answers.back().mutable_attempt()->mutable_exits(0);
          exit.set_exit_code(-1);
          exit.set_signal(9);
          exit.set_stop_reason(message.stop().reason());
        }
        break;
      }
      case v1::ControllerMessage::kForget:
        node.attempts.erase(key_of(message.forget().id()));
        break;
      default:
        break;
    }
  }
  send_all(stream, std::move(answers));
}

void Fleet::send_all(const std::shared_ptr<Stream>& stream, std::vector<v1::WorkerMessage> messages) {
  for (v1::WorkerMessage& message : messages) {
    if (message.has_attempt() && message.attempt().exits_size() > 0) {
      const std::lock_guard lock(mutex_);
      last_exit_ = absl::Now();
    }
    if (stream != nullptr) stream->send(std::move(message));
  }
}

void Fleet::fail_all(absl::Duration spread) {
  const absl::Time start = absl::Now();
  bool first = true;
  for (size_t i = 0; i < nodes_.size() && started_ > 0; ++i) {
    absl::SleepFor(start + spread * static_cast<double>(i) / static_cast<double>(nodes_.size()) - absl::Now());
    Node& node = *nodes_[i];
    std::vector<v1::WorkerMessage> reports;
    std::shared_ptr<Stream> stream;
    {
      const std::lock_guard lock(node.mutex);
      stream = node.stream;
      for (auto& [key, held] : node.attempts) {
        if (held.phase != v1::AttemptReport::STARTED) continue;
        --started_;
        held.phase = v1::AttemptReport::ENDED;
        for (const int rank : held.ranks) {
          reports.push_back(exit_of(held.id, rank, rank == held.ranks.back()));
          v1::RankExitReport* exit = reports.back().mutable_attempt()->mutable_exits(0);
          if (std::exchange(first, false)) {
            exit->set_exit_code(-1);
            exit->set_signal(9);
          } else {
            exit->set_exit_code(1);
            exit->set_last_words("a peer has closed its connection while an all-reduce was under way");
          }
        }
      }
    }
    send_all(stream, std::move(reports));
  }
}

bool Fleet::tell_step(int index, int64_t step) {
  Node& node = *nodes_[static_cast<size_t>(index)];
  v1::WorkerMessage message;
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard lock(node.mutex);
    stream = node.stream;
    Held* held = nullptr;
    for (auto& [key, one] : node.attempts) {
      if (one.leader && one.phase == v1::AttemptReport::STARTED) held = &one;
    }
    if (held == nullptr || stream == nullptr) return false;
    message = spool_line(held->id, ++held->sent_lines,
                         absl::StrFormat(R"({"kind":"step","step":%d,"metrics":{"loss_metrics/global_avg_loss":%.3f}})",
                                         step, 1.0 / static_cast<double>(step)));
  }
  stream->send(std::move(message));
  return true;
}

int Fleet::welcomed(int times) const {
  int count = 0;
  for (const auto& node : nodes_) {
    const std::lock_guard lock(node->mutex);
    count += node->welcomes >= times && node->lease_epoch != 0 ? 1 : 0;
  }
  return count;
}

Fleet::Prepared Fleet::prepared(int attempt) const {
  const std::lock_guard lock(mutex_);
  const auto found = prepared_.find(attempt);
  return found == prepared_.end() ? Prepared{} : found->second;
}

absl::Time Fleet::first_disconnect() const {
  const std::lock_guard lock(mutex_);
  return first_disconnect_;
}

absl::Time Fleet::last_exit() const {
  const std::lock_guard lock(mutex_);
  return last_exit_;
}

}  // namespace titan::scale
