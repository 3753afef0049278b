#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/rank/comm/interposed_backend.h"

// Collectives with the worst timing that an accelerator's streams allow. Between its issue and its wait() an operation
// may run at any time: it may read its inputs at the very end and write its outputs at the very beginning. Therefore
// the outputs hold invalid values until wait(), and wait() checks that the inputs are unchanged, that nothing was
// written to the outputs and that no memory was freed. An operation without a wait is an error, too. All of this runs
// on the CPU and needs no GPU.
namespace titan::testing {

// Fills a tensor with the invalid values that it holds while an operation uses it.
inline void spoil(at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  if (at::isFloatingType(tensor.scalar_type())) {
    tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  } else {
    tensor.fill_(tensor.element_size() == 1 ? 0x5A : -1234567);
  }
}

inline bool has_memory(const at::Tensor& tensor) {
  return tensor.numel() == 0 ||
         tensor.storage().nbytes() >= tensor.storage_offset() * tensor.element_size() + tensor.nbytes();
}

class GuardedWork : public c10d::Work {
 public:
  // `inner` writes to `results`, which are then copied to `outputs`. Inputs that are part of outputs are not listed in
  // `inputs`.
  GuardedWork(std::string what, c10::intrusive_ptr<c10d::Work> inner, std::vector<at::Tensor> inputs,
              std::vector<at::Tensor> outputs, std::vector<at::Tensor> results)
      : what_(std::move(what)),
        inner_(std::move(inner)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        results_(std::move(results)) {
    std::erase_if(inputs_, [this](const at::Tensor& input) {
      return std::any_of(outputs_.begin(), outputs_.end(),
                         [&](const at::Tensor& output) { return input.is_alias_of(output); });
    });
    for (const at::Tensor& input : inputs_) given_.push_back(input.clone());
    for (at::Tensor& output : outputs_) spoil(output);
    for (const at::Tensor& output : outputs_) spoiled_.push_back(output.clone());
  }
  ~GuardedWork() override {
    if (!waited_) ADD_FAILURE() << what_ << ": it was never waited for";
  }

  bool isCompleted() override { return waited_; }

  bool wait(std::chrono::milliseconds timeout) override {
    inner_->wait(timeout);
    if (std::exchange(waited_, true)) return true;
    at::AutoDispatchBelowADInplaceOrView below_autograd;  // Writes as a library does: no version counter changes.
    for (size_t i = 0; i < inputs_.size(); ++i) {
      TORCH_CHECK(has_memory(inputs_[i]), what_, ": the memory of input ", i, " was given back before wait()");
      TORCH_CHECK(same(inputs_[i], given_[i]), what_, ": input ", i, " was written to before wait()");
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      TORCH_CHECK(has_memory(outputs_[i]), what_, ": the memory of output ", i, " was given back before wait()");
      TORCH_CHECK(same(outputs_[i], spoiled_[i]), what_, ": output ", i, " was written to before wait()");
      outputs_[i].copy_(results_[i]);
    }
    inputs_.clear(), outputs_.clear(), results_.clear(), given_.clear(), spoiled_.clear();
    return true;
  }

 private:
  static bool same(const at::Tensor& one, const at::Tensor& other) {
    return one.numel() == 0 || std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
  }

  const std::string what_;
  c10::intrusive_ptr<c10d::Work> inner_;
  std::vector<at::Tensor> inputs_, outputs_, results_, given_, spoiled_;
  bool waited_ = false;
};

class GuardedBackend : public InterposedBackend {
 public:
  using InterposedBackend::InterposedBackend;
  const std::string getBackendName() const override { return "guarded"; }

 protected:
  // Runs on copies: the caller's tensors stay unchanged until wait().
  WorkPtr interpose(const InterposedCall& call) override {
    if (call.inputs.empty() && call.outputs.empty()) return call.issue({}, {});
    const Tensors results = copies(call.outputs);
    WorkPtr work = call.issue(copies(call.inputs), results);
    return c10::make_intrusive<GuardedWork>(call.operation, std::move(work), call.inputs, call.outputs, results);
  }

 private:
  static Tensors copies(const Tensors& tensors) {
    Tensors all;
    for (const at::Tensor& tensor : tensors) all.push_back(tensor.clone());
    return all;
  }
};

// A device with guarded groups.
class GuardedDevice : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  c10::intrusive_ptr<c10d::Backend> make_backend(const device::BackendOptions& options) override {
    return c10::make_intrusive<GuardedBackend>(inner_->make_backend(options));
  }
};

}  // namespace titan::testing
