#include "worker/rank/comm/split_groups.h"

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace titan::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

// Two ranks of a group, by index, and their communicator.
struct Channel {
  int first = 0, second = 0;  // Ranks 0 and 1 of the communicator.
  c10::intrusive_ptr<c10d::Backend> pair;

  int index_of(int rank) const { return rank == first ? 0 : 1; }
};
using Channels = std::map<std::pair<int, int>, Channel>;  // By sender and receiver.

// Returns a tensor on the same memory with another storage. LibTorch marks the memory of messages, unlike that of
// collectives, as used by the communicator's stream, so memory that is freed after wait() becomes available only when
// the host has seen the message's event. A host that is ahead of its device would then need more memory in every step.
// The allocator ignores storages that it did not make. Group keeps the tensor until wait(), after which the caller's
// stream, which owns the memory, is ordered after the message.
at::Tensor aliased(const at::Tensor& tensor) {
  return at::for_blob(tensor.data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .options(tensor.options())
      .target_device(tensor.device())
      .make_tensor();
}

class SplitBackend final : public c10d::Backend {
 public:
  SplitBackend(int rank, int size, at::Device device, c10::intrusive_ptr<c10d::Backend> collectives, Channels channels,
               std::function<void()> expect_abort)
      : c10d::Backend(rank, size),
        device_(device),
        collectives_(std::move(collectives)),
        channels_(std::move(channels)),
        expect_abort_(std::move(expect_abort)) {}

  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return collectives_->broadcast(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
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
    on_device.device_ids = {device_.index()};  // NCCL would derive the device from the rank's number.
    return collectives_->barrier(on_device);
  }

  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int destination, int tag) override {
    const Channel& channel = find(rank_, destination);
    Tensors own{aliased(tensors.front())};
    return channel.pair->send(own, channel.index_of(destination), tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int source, int tag) override {
    const Channel& channel = find(source, rank_);
    Tensors own{aliased(tensors.front())};
    return channel.pair->recv(own, channel.index_of(source), tag);
  }

  void setTimeout(std::chrono::milliseconds timeout) override {
    for_each([timeout](c10d::Backend& group) { group.setTimeout(timeout); });
  }
  // Aborts all concurrently, as DeviceMesh::abort() does, and only once: axes that share connections each call this.
  void abort() override {
    expect_abort_();
    if (aborted_.exchange(true)) return;
    std::vector<std::function<void()>> calls;
    for_each([&calls](c10d::Backend& group) { calls.emplace_back([&group] { group.abort(); }); });
    at_once(calls);
  }
  void shutdown() override {
    for_each([](c10d::Backend& group) { group.shutdown(); });
  }
  const std::string getBackendName() const override { return collectives_->getBackendName(); }

 private:
  const Channel& find(int source, int destination) const {
    const auto found = channels_.find({source, destination});
    TORCH_CHECK(found != channels_.end(), "no channel from rank ", source, " to rank ", destination, " of a group of ",
                size_, ": the group was opened for messages between other ranks");
    return found->second;
  }

  template <typename Call>
  void for_each(Call&& call) {
    call(*collectives_);
    for (const auto& [ends, channel] : channels_) {
      // A channel that carries both directions is in the map twice.
      if (ends == std::pair(channel.first, channel.second)) call(*channel.pair);
    }
  }

  const at::Device device_;
  const c10::intrusive_ptr<c10d::Backend> collectives_;
  const Channels channels_;
  const std::function<void()> expect_abort_;
  std::atomic<bool> aborted_{false};
};

// Sends the first byte through a channel. `index`: this rank's in the pair.
void open_channel(c10d::Backend& pair, Carries carries, int index, at::Device device) {
  Tensors word{at::zeros({1}, at::TensorOptions(at::kByte).device(device))};
  const auto say = [&](int source) {
    Tensors own{aliased(word.front())};
    (source == index ? pair.send(own, 1 - source, 0) : pair.recv(own, source, 0))->wait();
  };
  say(0);
  if (carries == Carries::kBothWays) say(1);
}

// Adds the pair of a split to which this rank belongs.
void add_channel(const CommSplit& cut, const Connection& connection, int rank, c10::intrusive_ptr<c10d::Backend> pair,
                 Channels& channels) {
  const std::vector<int>& ranks = cut.groups[static_cast<size_t>(part_of(cut.groups, rank).color)];
  const Channel channel{part_of(connection.groups, ranks[0]).index, part_of(connection.groups, ranks[1]).index,
                        std::move(pair)};
  channels[{channel.first, channel.second}] = channel;
  if (cut.carries == Carries::kBothWays) channels[{channel.second, channel.first}] = channel;
}

}  // namespace

std::vector<c10::intrusive_ptr<c10d::Backend>> open_split_groups(const std::vector<Connection>& connections,
                                                                 const device::BackendOptions& world, at::Device device,
                                                                 Communicators& communicators) {
  const CommSplitPlan plan = comm_split_plan(connections);
  std::vector<c10::intrusive_ptr<c10d::Backend>> collectives(connections.size());
  std::vector<Channels> channels(connections.size());
  if (plan.whole) collectives[*plan.whole] = communicators.world();
  for (size_t number = 0; number < plan.splits.size(); ++number) {
    const CommSplit& cut = plan.splits[number];
    const bool messages = cut.carries != Carries::kCollectives;
    auto made = communicators.cut(cut, number, messages ? world.message_max_ctas : world.max_ctas);
    if (!made) continue;
    if (messages) {
      open_channel(*made, cut.carries, made->getRank(), device);
      add_channel(cut, connections[cut.connection], world.rank, std::move(made), channels[cut.connection]);
    } else {
      collectives[cut.connection] = std::move(made);
    }
  }
  std::vector<c10::intrusive_ptr<c10d::Backend>> opened;
  for (size_t i = 0; i < connections.size(); ++i) {
    const CommSplitPart part = part_of(connections[i].groups, world.rank);
    opened.push_back(c10::make_intrusive<SplitBackend>(part.index, part.size, device, std::move(collectives[i]),
                                                       std::move(channels[i]), communicators.abort_notice()));
  }
  return opened;
}

}  // namespace titan::comm
