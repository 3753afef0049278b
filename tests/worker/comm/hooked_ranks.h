#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/comm/thread_ranks.h"

namespace titan::testing {

// One operation on its way into a rank's backend.
struct HookedCall {
  std::string group;      // The same name on all its ranks.
  std::string operation;  // "all_to_all", "send", ...
  int64_t bytes = 0;      // Of an exchange of uneven pieces: of one row, since each rank has its own number of them.
};

// What a test does to the operations of one rank.
struct Hook {
  std::function<void(const HookedCall&)> issues;  // Before the operation begins; may throw.
};

// Passes everything on, after the hook has seen it.
class HookedBackend : public c10d::Backend {
 public:
  HookedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string group, const Hook& hook)
      : c10d::Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        group_(std::move(group)),
        hook_(hook) {}

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return pass_on("broadcast", tensors[0], [&] { return inner_->broadcast(tensors, options); });
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return pass_on("all_reduce", tensors[0], [&] { return inner_->allreduce(tensors, options); });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    return pass_on("all_gather", output, [&] { return inner_->_allgather_base(output, input, options); });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    return pass_on("reduce_scatter", input, [&] { return inner_->_reduce_scatter_base(output, input, options); });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override {
    const at::Tensor one_row = input_splits.empty() ? input : input.new_empty(input.sizes().slice(1));
    return pass_on("all_to_all", one_row,
                   [&] { return inner_->alltoall_base(output, input, output_splits, input_splits, options); });
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override {
    return pass_on("send", tensors[0], [&] { return inner_->send(tensors, destination, tag); });
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override {
    return pass_on("recv", tensors[0], [&] { return inner_->recv(tensors, source, tag); });
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    return pass_on("barrier", {}, [&] { return inner_->barrier(options); });
  }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void abort() override { inner_->abort(); }
  const std::string getBackendName() const override { return inner_->getBackendName(); }

 private:
  template <typename Issue>
  c10::intrusive_ptr<c10d::Work> pass_on(const char* operation, const at::Tensor& tensor, const Issue& issue) {
    const HookedCall call{group_, operation, tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0};
    if (hook_.issues) hook_.issues(call);
    return issue();
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::string group_;
  const Hook& hook_;
};

// A device whose groups are hooked; `hook` must outlive them.
class HookedDevice : public comm::Device {
 public:
  HookedDevice(std::unique_ptr<comm::Device> inner, const Hook& hook) : inner_(std::move(inner)), hook_(hook) {}

  at::Device torch_device() const override { return inner_->torch_device(); }
  c10::intrusive_ptr<c10d::Backend> make_backend(const comm::BackendOptions& options) override {
    static std::atomic<int> next{0};
    const std::string name = options.store->compareSet("hooked-group", "", "group " + std::to_string(next++));
    return c10::make_intrusive<HookedBackend>(inner_->make_backend(options), name, hook_);
  }
  comm::Collectives collectives() const override { return inner_->collectives(); }
  void resize_storage(c10::StorageImpl& storage, int64_t bytes) override { inner_->resize_storage(storage, bytes); }
  int64_t peak_memory_bytes() const override { return inner_->peak_memory_bytes(); }
  int64_t total_memory_bytes() const override { return inner_->total_memory_bytes(); }

 private:
  const std::unique_ptr<comm::Device> inner_;
  const Hook& hook_;
};

// Thrown by a rank that ends without a word, as a process does that is killed.
struct Vanishes {};

// Runs `body` for every rank of a mesh of threads, whose rank r has the hook hooks[r]; returns what each of them threw.
// A rank that throws tells the hub, as the rank program does.
inline std::vector<std::exception_ptr> run_hooked_ranks(const mesh::Degrees& degrees, const std::set<mesh::Axis>& axes,
                                                        const std::vector<Hook>& hooks,
                                                        const std::function<void(ThreadRank&)>& body) {
  const int world = static_cast<int>(hooks.size());
  const mesh::Mesh mesh = mesh::Mesh::create(degrees, world).value();
  auto hub = std::make_shared<comm::LocalHub>();
  std::vector<std::exception_ptr> failures(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        ThreadRank self;
        self.rank = rank;
        self.device = std::make_unique<HookedDevice>(comm::make_local_device(hub), hooks[rank]);
        self.mesh = std::make_unique<comm::DeviceMesh>(
            mesh, axes, *self.device, self.ledger,
            comm::DeviceMeshOptions{.rank = rank, .store = hub->store(), .timeout = std::chrono::seconds(30)});
        try {
          body(self);
        } catch (const std::exception& failure) {  // While the rank is still there: then it is not just gone.
          hub->fail("rank " + std::to_string(rank) + " failed: " + comm::describe(failure));
          throw;
        }
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

}  // namespace titan::testing
