#include "worker/comm/cuda/nccl_backend.h"

#include <c10/cuda/CUDAGuard.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <vector>

#include "worker/comm/at_once.h"
#include "worker/comm/cuda/lost_peer.h"

namespace titan::comm {
namespace {

c10::intrusive_ptr<c10d::Backend> make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                             std::chrono::milliseconds timeout) {
  auto nccl = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  nccl->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, std::move(nccl));
}

// Ways between two ranks of a group, by (sender, receiver): each a group of these two, in this order.
using OpenWays = std::map<std::pair<int, int>, c10::intrusive_ptr<c10d::Backend>>;

class NcclBackend : public c10d::Backend {
 public:
  // `open`: all ways that this rank has; without any the first message opens them.
  NcclBackend(const BackendOptions& options, at::Device device, c10::intrusive_ptr<c10d::Backend> collectives,
              OpenWays open)
      : c10d::Backend(options.rank, options.size),
        device_(device),
        store_(options.store),
        timeout_(options.timeout),
        collectives_(std::move(collectives)),
        open_ways_(std::move(open)) {}

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return collectives_->broadcast(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return collectives_->allreduce(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    return collectives_->_allgather_base(output, input, options);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    return collectives_->_reduce_scatter_base(output, input, options);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override {
    return collectives_->alltoall_base(output, input, output_splits, input_splits, options);
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    c10d::BarrierOptions on_device = options;
    on_device.device_ids = {device_.index()};  // NCCL would guess the device from the rank's number.
    return collectives_->barrier(on_device);
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override {
    if (!open_ways_.empty()) return open_way(rank_, destination).send(tensors, /*dstRank=*/1, tag);
    return way(rank_, destination).send(tensors, destination, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override {
    if (!open_ways_.empty()) return open_way(source, rank_).recv(tensors, /*srcRank=*/0, tag);
    return way(source, rank_).recv(tensors, source, tag);
  }

  void setTimeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
    for_each([timeout](c10d::Backend& group) { group.setTimeout(timeout); });
  }
  // At the same time, as DeviceMesh::abort(). Once: axes that share connections come here each.
  void abort() override {
    expect_broken_groups();
    if (aborted_.exchange(true)) return;
    std::vector<std::function<void()>> calls;
    for_each([&calls](c10d::Backend& group) { calls.emplace_back([&group] { group.abort(); }); });
    at_once(calls);
  }
  void shutdown() override {
    for_each([](c10d::Backend& group) { group.shutdown(); });
  }
  const std::string getBackendName() const override { return "nccl"; }

 private:
  using Ways = std::array<c10::intrusive_ptr<c10d::Backend>, 2>;

  // Also from another thread than the rank's own, which may be opening its ways.
  template <typename Call>
  void for_each(Call&& call) {
    call(*collectives_);
    for (const auto& entry : open_ways_) call(*entry.second);
    for (const auto& group : ways()) {
      if (group) call(*group);
    }
  }
  Ways ways() {
    const std::lock_guard lock(mutex_);
    return ways_;
  }

  c10d::Backend& open_way(int source, int destination) const {
    const auto found = open_ways_.find({source, destination});
    TORCH_CHECK(found != open_ways_.end(), "no way from ", source, " to ", destination, " of ", size_,
                " ranks: messages of this group go to others");
    return *found->second;
  }

  // For unbatched messages LibTorch keeps a communicator for each pair of ranks. Two such groups, one for messages up
  // and one for messages down, make one for each ordered pair.
  c10d::Backend& way(int source, int destination) {
    if (!opened_) open_ways();
    return *ways_[source < destination ? 0 : 1];
  }

  void open_ways() {
    const char* const names[] = {"messages-up", "messages-down"};
    Ways made;
    for (size_t i = 0; i < made.size(); ++i) {
      made[i] = make_group(c10::make_intrusive<c10d::PrefixStore>(names[i], store_), rank_, size_, timeout_);
    }
    {
      const std::lock_guard lock(mutex_);
      ways_ = std::move(made);
    }
    opened_ = true;
    // Every other edge of the ring first: ranks whose edges do not touch open theirs at the same time.
    for (const int parity : {0, 1}) {
      for (int first = parity; first < size_; first += 2) {
        const int second = (first + 1) % size_;
        if (size_ == 2 && first == 1) continue;  // The same edge again.
        if (rank_ != first && rank_ != second) continue;
        greet(first, second);
        greet(second, first);
      }
    }
  }

  void greet(int source, int destination) {
    const c10::cuda::CUDAGuard guard(device_);
    std::vector<at::Tensor> word{at::zeros({1}, at::TensorOptions(at::kByte).device(device_))};
    c10d::Backend& group = *ways_[source < destination ? 0 : 1];
    const auto work = rank_ == source ? group.send(word, destination, 0) : group.recv(word, source, 0);
    work->wait();
  }

  const at::Device device_;
  const c10::intrusive_ptr<c10d::Store> store_;
  std::atomic<std::chrono::milliseconds> timeout_;
  const c10::intrusive_ptr<c10d::Backend> collectives_;
  const OpenWays open_ways_;
  std::atomic<bool> aborted_{false};
  bool opened_ = false;
  std::mutex mutex_;
  Ways ways_;  // Null until the first message; then they stay.
};

// The communicator of all ranks, from which the others are cut.
class World {
 public:
  // Returns once it is connected.
  World(const BackendOptions& options, at::Device device)
      : options_(options),
        device_(device),
        group_(connected("nccl", options.rank, options.size, blocking_options(options))) {}

  const c10::intrusive_ptr<c10d::ProcessGroupNCCL>& group() const { return group_; }

  // Null for a rank that has no group in it. `number` tells cuts apart in the store.
  c10::intrusive_ptr<c10d::Backend> cut(const Cut& cut, size_t number) const {
    const CutPart part = part_of(cut.groups, options_.rank);
    if (part.color < 0) {
      group_->performNocolorSplit(device_);
      return {};
    }
    auto nccl = blocking_options(options_);
    nccl->split_from = group_;
    nccl->split_color = part.color;
    const std::string prefix = "nccl-" + std::to_string(number) + "/" + std::to_string(part.color);
    return connected(prefix, part.index, part.size, std::move(nccl));
  }

 private:
  using NcclOptions = c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options>;

  // The calls return when the communicator is there, so that what fails does so here and not in the first step.
  static NcclOptions blocking_options(const BackendOptions& options) {
    auto nccl = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    nccl->timeout = options.timeout;
    nccl->config.blocking = 1;
    return nccl;
  }

  // On a group that connects so LibTorch sends messages through the communicator of the group itself.
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> connected(const std::string& prefix, int rank, int size,
                                                       NcclOptions nccl) const {
    auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, options_.store);
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, size, std::move(nccl));
    group->setBoundDeviceId(device_);
    group->eagerConnectSingleDevice(device_);
    return group;
  }

  const BackendOptions options_;
  const at::Device device_;
  const c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

// Sender and receiver, by their index in the connection's group, of this rank's way in a cut of messages.
std::pair<int, int> way_of(const Cut& cut, const Connection& connection, int rank) {
  const std::vector<int>& pair = cut.groups[static_cast<size_t>(part_of(cut.groups, rank).color)];
  return {part_of(connection.groups, pair[0]).index, part_of(connection.groups, pair[1]).index};
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendOptions& options, at::Device device) {
  auto collectives = make_group(options.store, options.rank, options.size, options.timeout);
  return c10::make_intrusive<NcclBackend>(options, device, std::move(collectives), OpenWays{});
}

std::vector<c10::intrusive_ptr<c10d::Backend>> open_nccl_groups(const std::vector<Connection>& connections,
                                                                const BackendOptions& world, at::Device device) {
  if (connections.empty()) return {};
  const c10::cuda::CUDAGuard guard(device);
  const World whole(world, device);
  const CutPlan plan = cut_plan(connections);
  std::vector<c10::intrusive_ptr<c10d::Backend>> collectives(connections.size());
  std::vector<OpenWays> ways(connections.size());
  if (plan.whole) collectives[*plan.whole] = whole.group();
  for (size_t i = 0; i < plan.cuts.size(); ++i) {
    const Cut& cut = plan.cuts[i];
    const Connection& connection = connections[cut.connection];
    auto made = whole.cut(cut, i);
    if (!made) continue;
    if (cut.messages) {
      ways[cut.connection][way_of(cut, connection, world.rank)] = std::move(made);
    } else {
      collectives[cut.connection] = std::move(made);
    }
  }
  std::vector<c10::intrusive_ptr<c10d::Backend>> opened;
  for (size_t i = 0; i < connections.size(); ++i) {
    const CutPart part = part_of(connections[i].groups, world.rank);
    BackendOptions own = world;
    own.store = c10::make_intrusive<c10d::PrefixStore>(group_prefix(connections[i], part), world.store);
    own.rank = part.index;
    own.size = part.size;
    opened.push_back(c10::make_intrusive<NcclBackend>(own, device, std::move(collectives[i]), std::move(ways[i])));
  }
  return opened;
}

}  // namespace titan::comm
