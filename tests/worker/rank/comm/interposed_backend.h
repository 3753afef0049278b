#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/rank/device/device.h"

namespace titan::testing {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

// One operation that enters a backend.
struct InterposedCall {
  const char* operation;  // "all_to_all", "send", ...
  Tensors inputs;         // Tensors that are also outputs are not listed here.
  Tensors outputs;
  int64_t bytes = 0;  // For an uneven exchange the bytes of one row: ranks have different numbers of them.
  // Issues the operation on the given tensors: the call's own, or others of the same shapes.
  std::function<WorkPtr(Tensors inputs, Tensors outputs)> issue;
};

// Sends the operations that Titan uses through one function.
class InterposedBackend : public c10d::Backend {
 public:
  explicit InterposedBackend(c10::intrusive_ptr<c10d::Backend> inner)
      : c10d::Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return pass_on("broadcast", {}, tensors,
                   [=, this](Tensors&, Tensors& outputs) { return inner_->broadcast(outputs, options); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return pass_on("all_reduce", {}, tensors,
                   [=, this](Tensors&, Tensors& outputs) { return inner_->allreduce(outputs, options); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return pass_on("all_gather", {input}, {output}, [=, this](Tensors& inputs, Tensors& outputs) {
      return inner_->_allgather_base(outputs[0], inputs[0], options);
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return pass_on("reduce_scatter", {input}, {output}, [=, this](Tensors& inputs, Tensors& outputs) {
      return inner_->_reduce_scatter_base(outputs[0], inputs[0], options);
    });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    InterposedCall call{"all_to_all", {input}, {output}, static_cast<int64_t>(input.nbytes()), {}};
    if (!input_splits.empty()) call.bytes = input.element_size() * c10::multiply_integers(input.sizes().slice(1));
    call.issue = [&, this](Tensors inputs, Tensors outputs) {
      return inner_->alltoall_base(outputs[0], inputs[0], output_splits, input_splits, options);
    };
    return interpose(call);
  }
  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    return pass_on("send", tensors, {},
                   [=, this](Tensors& inputs, Tensors&) { return inner_->send(inputs, destination, tag); });
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    return pass_on("recv", {}, tensors,
                   [=, this](Tensors&, Tensors& outputs) { return inner_->recv(outputs, source, tag); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return pass_on("barrier", {}, {}, [=, this](Tensors&, Tensors&) { return inner_->barrier(options); });
  }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }
  const std::string getBackendName() const override { return inner_->getBackendName(); }

 protected:
  virtual WorkPtr interpose(const InterposedCall& call) = 0;

  const c10::intrusive_ptr<c10d::Backend> inner_;

 private:
  template <typename Issue>
  WorkPtr pass_on(const char* operation, Tensors inputs, Tensors outputs, const Issue& issue) {
    InterposedCall call{operation, std::move(inputs), std::move(outputs), 0, {}};
    for (const Tensors* tensors : {&call.inputs, &call.outputs}) {
      if (!tensors->empty()) call.bytes = std::max(call.bytes, static_cast<int64_t>(tensors->front().nbytes()));
    }
    call.issue = [&issue](Tensors given, Tensors results) { return issue(given, results); };
    return interpose(call);
  }
};

// A device that forwards everything except the creation of groups.
class ForwardingDevice : public device::Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<device::Device> inner) : inner_(std::move(inner)) {}

  at::Device torch_device() const override { return inner_->torch_device(); }
  void resize_storage(c10::StorageImpl& storage, int64_t bytes) override { inner_->resize_storage(storage, bytes); }
  void synchronize() override { inner_->synchronize(); }
  int64_t peak_memory_bytes() const override { return inner_->peak_memory_bytes(); }
  int64_t total_memory_bytes() const override { return inner_->total_memory_bytes(); }
  std::string name() const override { return inner_->name(); }
  device::DeviceMemory memory() const override { return inner_->memory(); }
  void reset_peak_memory() override { inner_->reset_peak_memory(); }
  void seed(uint64_t seed) override { inner_->seed(seed); }
  bool draw(const device::NormalBox& box, at::Tensor& out) override { return inner_->draw(box, out); }

 protected:
  const std::unique_ptr<device::Device> inner_;
};

}  // namespace titan::testing
