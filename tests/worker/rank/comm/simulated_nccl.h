#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/worker/rank/comm/interposed_backend.h"
#include "worker/rank/comm/communicator_splits.h"
#include "worker/rank/comm/split_groups.h"
#include "worker/rank/comm/store.h"

// Collectives between threads with NCCL's rules, which are stricter than the CPU's, so that a deadlock on GPUs is a
// deadlock here:
// - A communicator has no tags and runs its operations one after the other on each rank, in the order of their issue. A
//   send ends when its receive is the first open operation on the other rank; a collective when it is the first on all
//   ranks.
// - The first message from one rank to another on a communicator blocks the host that issues it until the other one has
//   issued its half, and the first collective until all have issued it: that is when NCCL connects them.
// - Splitting the world's communicator needs all ranks.
// - LibTorch marks the memory of messages as used by another stream, which delays its release.
// If no rank can continue, all fail at once with a list of who waits for what. Nothing depends on time.
namespace titan::testing {

// State that all ranks of a world share.
class SimulatedNccl {
 public:
  struct Operation {
    std::string what;  // The same for all ranks of a collective, and for both of a message.
    int rank = 0;      // Index in the communicator.
    int peer = -1;     // Peer of a message; -1: a collective.
    bool sends = false;
    bool done = false;
  };
  using OperationPtr = std::shared_ptr<Operation>;

  struct Communicator {
    std::string name;
    std::vector<int> ranks;                     // Global ranks.
    std::vector<std::deque<OperationPtr>> due;  // By rank: issued and not done.
    std::set<std::tuple<int, int, bool>> met;   // Sender, receiver; whether it was the sender that called.
    std::vector<bool> collective;               // Ranks that have issued a collective.
    int aborted = 0;                            // Number of calls to abort.
  };

  // `greets`: whether ranks exchange a first message on every channel while groups open. If not, the first message
  // blocks.
  explicit SimulatedNccl(int ranks, bool greets = true) : greets_(greets) {
    for (int rank = 0; rank < ranks; ++rank) live_.insert(rank);
  }

  // Returns the communicator of these ranks, the same one for all of them.
  Communicator& communicator(const std::string& name, const std::vector<int>& ranks) {
    const std::lock_guard lock(mutex_);
    auto& slot = communicators_[name];
    if (slot == nullptr) {
      slot = std::make_unique<Communicator>();
      slot->name = name;
      slot->ranks = ranks;
      slot->due.resize(ranks.size());
      slot->collective.resize(ranks.size());
    }
    return *slot;
  }

  // Blocks until `size` ranks have reached `place`.
  void meet(int rank, size_t size, const std::string& place) {
    std::unique_lock lock(mutex_);
    std::set<int>& here = places_[place];
    here.insert(rank);
    changed_.notify_all();
    block(
        lock, rank, [&here, size] { return here.size() == size; }, "is at " + place);
  }

  // Each rank calls this when its groups are open. Unless the world greets, it disconnects the channels again.
  void opened(int rank, size_t size) {
    if (greets_) return;
    meet(rank, size, "the end of opening");
    {
      const std::lock_guard lock(mutex_);
      if (rank == 0) {
        for (auto& [name, group] : communicators_) group->met.clear();
      }
    }
    meet(rank, size, "the first step");
  }

  void check_usable() {
    const std::lock_guard lock(mutex_);
    check();
  }

  OperationPtr issue(Communicator& group, Operation operation) {
    std::unique_lock lock(mutex_);
    auto issued = std::make_shared<Operation>(std::move(operation));
    const int rank = issued->rank, peer = issued->peer;
    group.due[static_cast<size_t>(rank)].push_back(issued);
    if (peer < 0) {
      group.collective[static_cast<size_t>(rank)] = true;
    } else {
      group.met.insert({issued->sends ? rank : peer, issued->sends ? peer : rank, issued->sends});
    }
    advance(group);
    changed_.notify_all();
    const auto connected = [&group, rank, peer, sends = issued->sends] {
      if (peer >= 0) return group.met.contains({sends ? rank : peer, sends ? peer : rank, !sends});
      return std::find(group.collective.begin(), group.collective.end(), false) == group.collective.end();
    };
    block(lock, group.ranks[static_cast<size_t>(rank)], connected, "connects to issue " + words(group, *issued));
    return issued;
  }

  void wait(Communicator& group, const OperationPtr& operation) {
    std::unique_lock lock(mutex_);
    block(
        lock, group.ranks[static_cast<size_t>(operation->rank)], [&] { return operation->done; },
        "waits for " + words(group, *operation));
  }

  bool done(const Operation& operation) {
    const std::lock_guard lock(mutex_);
    return operation.done;
  }

  // Records that a rank has ended.
  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    live_.erase(rank);
    if (!blocked_.empty() && is_stuck()) fail();
  }

  void abort(Communicator& group) {
    const std::lock_guard lock(mutex_);
    ++group.aborted;
  }

  // Counts the bytes that messages use in allocated memory, because LibTorch delays their release.
  void note_memory(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    if (tensor.storage().data_ptr().get_context() != nullptr) late_bytes_ += static_cast<int64_t>(tensor.nbytes());
  }
  int64_t late_bytes() {
    const std::lock_guard lock(mutex_);
    return late_bytes_;
  }

  void note_limit(const std::string& cut, int max_ctas) {
    const std::lock_guard lock(mutex_);
    limits_[cut] = max_ctas;
  }
  // Returns the limit of each split, by its number.
  std::map<std::string, int> limits() {
    const std::lock_guard lock(mutex_);
    return limits_;
  }
  // Returns how often each communicator was aborted, all its ranks together.
  std::map<std::string, int> aborts() {
    const std::lock_guard lock(mutex_);
    std::map<std::string, int> all;
    for (const auto& [name, group] : communicators_) all[name] = group->aborted;
    return all;
  }

 private:
  static bool fits(const Operation& first, const Operation& second) {
    return first.peer == second.rank && second.peer == first.rank && first.sends != second.sends &&
           first.what == second.what;
  }

  // Ends every operation that can end.
  void advance(Communicator& group) {
    const auto front = [&group](size_t rank) { return group.due[rank].empty() ? nullptr : group.due[rank].front(); };
    const auto end = [&group](const OperationPtr& operation) {
      operation->done = true;
      group.due[static_cast<size_t>(operation->rank)].pop_front();
    };
    for (bool moved = true; moved;) {
      moved = false;
      size_t collectives = 0;
      for (size_t rank = 0; rank < group.due.size(); ++rank) {
        const OperationPtr mine = front(rank);
        if (mine == nullptr) continue;
        if (mine->peer < 0) {
          const OperationPtr first = front(0);
          collectives += first != nullptr && first->peer < 0 && first->what == mine->what;
          continue;
        }
        const OperationPtr theirs = front(static_cast<size_t>(mine->peer));
        if (theirs == nullptr || !fits(*mine, *theirs)) continue;
        end(mine), end(theirs);
        moved = true;
      }
      if (moved || collectives < group.due.size()) continue;
      for (size_t rank = 0; rank < group.due.size(); ++rank) end(front(rank));
      moved = true;
    }
  }

  static std::string words(const Communicator& group, const Operation& operation) {
    std::string text = operation.what;
    if (operation.peer >= 0) {
      text = (operation.sends ? "send to rank " : "receive from rank ") +
             std::to_string(group.ranks[static_cast<size_t>(operation.peer)]) + " of " + text;
    }
    return text + " on " + group.name;
  }

  void check() const {
    if (!failure_.empty()) C10_THROW_ERROR(DistBackendError, failure_);
  }

  bool is_stuck() const {
    if (blocked_.size() < live_.size()) return false;
    for (const auto& [rank, wait] : blocked_) {
      if (wait.first()) return false;
    }
    return true;
  }

  void fail() {
    if (failure_.empty()) {
      failure_ = "no rank can continue:";
      for (const auto& [rank, wait] : blocked_) failure_ += " rank " + std::to_string(rank) + " " + wait.second + ";";
    }
    changed_.notify_all();
  }

  void block(std::unique_lock<std::mutex>& lock, int rank, const std::function<bool()>& ready,
             const std::string& words) {
    blocked_[rank] = {ready, words};
    if (is_stuck()) fail();
    changed_.wait(lock, [&] { return ready() || !failure_.empty(); });
    blocked_.erase(rank);
    if (!ready()) check();
  }

  const bool greets_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> live_;
  std::map<int, std::pair<std::function<bool()>, std::string>> blocked_;
  std::map<std::string, std::set<int>> places_;
  std::map<std::string, std::unique_ptr<Communicator>> communicators_;
  std::map<std::string, int> limits_;
  std::string failure_;
  int64_t late_bytes_ = 0;
};

// An operation that ends when NCCL's rules allow it. By then `inner` has computed its result.
class SimulatedWork : public c10d::Work {
 public:
  SimulatedWork(std::shared_ptr<SimulatedNccl> nccl, SimulatedNccl::Communicator& group,
                SimulatedNccl::OperationPtr operation, WorkPtr inner)
      : nccl_(std::move(nccl)), group_(group), operation_(std::move(operation)), inner_(std::move(inner)) {}

  bool isCompleted() override { return nccl_->done(*operation_); }
  bool wait(std::chrono::milliseconds timeout) override {
    nccl_->wait(group_, operation_);
    return inner_->wait(timeout);
  }

 private:
  const std::shared_ptr<SimulatedNccl> nccl_;
  SimulatedNccl::Communicator& group_;
  const SimulatedNccl::OperationPtr operation_;
  const WorkPtr inner_;
};

// One rank of one communicator. `inner` moves the data and must not impose rules.
class SimulatedNcclBackend : public InterposedBackend {
 public:
  SimulatedNcclBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<SimulatedNccl> nccl,
                       SimulatedNccl::Communicator& group)
      : InterposedBackend(std::move(inner)), nccl_(std::move(nccl)), group_(group) {}

  WorkPtr send(Tensors& tensors, int destination, int /*tag*/) override {
    return message(tensors, destination, /*sends=*/true);
  }
  WorkPtr recv(Tensors& tensors, int source, int /*tag*/) override { return message(tensors, source, /*sends=*/false); }
  void abort() override { nccl_->abort(group_); }
  const std::string getBackendName() const override { return "nccl"; }

 protected:
  WorkPtr interpose(const InterposedCall& call) override {
    std::string what = call.operation;
    for (const Tensors* tensors : {&call.inputs, &call.outputs}) {
      // Exchanges of uneven pieces have different sizes on each rank.
      if (!tensors->empty() && what != "all_to_all") what += " of " + std::to_string(tensors->front().numel());
    }
    nccl_->check_usable();
    return under_way({.what = what, .rank = rank_}, call.issue(call.inputs, call.outputs));
  }

 private:
  WorkPtr message(Tensors& tensors, int peer, bool sends) {
    nccl_->note_memory(tensors.front());
    const std::string what = std::to_string(tensors.front().nbytes()) + " bytes";
    nccl_->check_usable();
    WorkPtr inner = sends ? inner_->send(tensors, peer, /*tag=*/0) : inner_->recv(tensors, peer, /*tag=*/0);
    return under_way({.what = what, .rank = rank_, .peer = peer, .sends = sends}, std::move(inner));
  }

  WorkPtr under_way(SimulatedNccl::Operation operation, WorkPtr inner) {
    auto issued = nccl_->issue(group_, std::move(operation));
    return c10::make_intrusive<SimulatedWork>(nccl_, group_, std::move(issued), std::move(inner));
  }

  const std::shared_ptr<SimulatedNccl> nccl_;
  SimulatedNccl::Communicator& group_;
};

// One rank's communicators, split as NcclCommunicators splits them.
class SimulatedCommunicators : public comm::Communicators {
 public:
  SimulatedCommunicators(device::Device& inner, const device::BackendOptions& world,
                         std::shared_ptr<SimulatedNccl> nccl)
      : inner_(inner), world_(world), nccl_(std::move(nccl)) {
    std::vector<int> ranks;
    for (int rank = 0; rank < world.size; ++rank) ranks.push_back(rank);
    nccl_->note_limit("world", world.max_ctas);
    group_ = make("world", world.rank, ranks);
  }

  c10::intrusive_ptr<c10d::Backend> world() override { return group_; }

  c10::intrusive_ptr<c10d::Backend> cut(const comm::CommSplit& cut, size_t number, int max_ctas) override {
    const std::string name = "cut " + std::to_string(number);
    nccl_->meet(world_.rank, static_cast<size_t>(world_.size), name);
    nccl_->note_limit(name, max_ctas);
    const comm::CommSplitPart part = comm::part_of(cut.groups, world_.rank);
    if (part.color < 0) return {};
    return make(name + "/" + std::to_string(part.color), part.index, cut.groups[static_cast<size_t>(part.color)]);
  }

 private:
  c10::intrusive_ptr<c10d::Backend> make(const std::string& name, int index, const std::vector<int>& ranks) {
    device::BackendOptions options = world_;
    options.store = comm::prefixed(world_.store, name);
    options.rank = index;
    options.size = static_cast<int>(ranks.size());
    return c10::make_intrusive<SimulatedNcclBackend>(inner_.make_backend(options), nccl_,
                                                     nccl_->communicator(name, ranks));
  }

  device::Device& inner_;
  const device::BackendOptions world_;
  const std::shared_ptr<SimulatedNccl> nccl_;
  c10::intrusive_ptr<c10d::Backend> group_;
};

// A CPU rank that opens its groups with the code for GPUs, over the simulation.
class SimulatedNcclDevice : public ForwardingDevice {
 public:
  SimulatedNcclDevice(std::unique_ptr<device::Device> inner, int rank, std::shared_ptr<SimulatedNccl> nccl)
      : ForwardingDevice(std::move(inner)), rank_(rank), nccl_(std::move(nccl)) {}
  ~SimulatedNcclDevice() override { nccl_->leave(rank_); }

  c10::intrusive_ptr<c10d::Backend> make_backend(const device::BackendOptions&) override {
    TORCH_CHECK(false, "groups are opened together");
  }
  std::optional<std::vector<c10::intrusive_ptr<c10d::Backend>>> open_groups(
      const std::vector<comm::Connection>& connections, const device::BackendOptions& world) override {
    if (connections.empty()) return std::vector<c10::intrusive_ptr<c10d::Backend>>();
    SimulatedCommunicators communicators(*inner_, world, nccl_);
    auto groups = comm::open_split_groups(connections, world, torch_device(), communicators);
    nccl_->opened(rank_, static_cast<size_t>(world.size));
    return groups;
  }

 private:
  const int rank_;
  const std::shared_ptr<SimulatedNccl> nccl_;
};

}  // namespace titan::testing
