#include "worker/comm/cuda/nccl_backend.h"

#include <c10/cuda/CUDAGuard.h>

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
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

class NcclBackend : public c10d::Backend {
 public:
  NcclBackend(const BackendOptions& options, at::Device device)
      : c10d::Backend(options.rank, options.size),
        device_(device),
        store_(options.store),
        timeout_(options.timeout),
        collectives_(make_group(options.store, options.rank, options.size, options.timeout)) {}

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
    return way(rank_, destination).send(tensors, destination, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override {
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
    for (const auto& group : ways()) {
      if (group) call(*group);
    }
  }
  Ways ways() {
    const std::lock_guard lock(mutex_);
    return ways_;
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
  std::atomic<bool> aborted_{false};
  bool opened_ = false;
  std::mutex mutex_;
  Ways ways_;  // Null until the first message; then they stay.
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendOptions& options, at::Device device) {
  return c10::make_intrusive<NcclBackend>(options, device);
}

}  // namespace titan::comm
