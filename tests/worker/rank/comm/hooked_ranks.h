#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/rank/comm/interposed_backend.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/comm/make_device.h"

namespace titan::testing {

// One operation that enters a rank's backend.
struct HookedCall {
  std::string group;  // The same name on all its ranks.
  std::string operation;
  int64_t bytes = 0;  // Like InterposedCall.
};

// A test's function for the operations of one rank.
struct Hook {
  std::function<void(const HookedCall&)> issues;  // Runs before the operation starts; may throw.
};

// Calls the hook, then forwards the operation.
class HookedBackend : public InterposedBackend {
 public:
  HookedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string group, const Hook& hook)
      : InterposedBackend(std::move(inner)), group_(std::move(group)), hook_(hook) {}

 protected:
  WorkPtr interpose(const InterposedCall& call) override {
    if (hook_.issues) hook_.issues({group_, call.operation, call.bytes});
    return call.issue(call.inputs, call.outputs);
  }

 private:
  const std::string group_;
  const Hook& hook_;
};

// A device with hooked groups; `hook` must outlive them.
class HookedDevice : public ForwardingDevice {
 public:
  HookedDevice(std::unique_ptr<device::Device> inner, const Hook& hook)
      : ForwardingDevice(std::move(inner)), hook_(hook) {}

  c10::intrusive_ptr<c10d::Backend> make_backend(const device::BackendOptions& options) override {
    static std::atomic<int> next{0};
    const std::string name = options.store->compareSet("hooked-group", "", "group " + std::to_string(next++));
    return c10::make_intrusive<HookedBackend>(inner_->make_backend(options), name, hook_);
  }

 private:
  const Hook& hook_;
};

// Thrown by a rank that ends without a report, like a killed process.
struct SilentExit {};

// Runs run_world() with hooks[r] on rank r.
inline std::vector<std::exception_ptr> run_hooked_ranks(const mesh::Degrees& degrees, const std::set<mesh::Axis>& axes,
                                                        const std::vector<Hook>& hooks,
                                                        const std::function<void(ThreadRank&)>& body) {
  const auto hooked = [&](int rank, const std::shared_ptr<comm::LocalHub>& hub) {
    return std::make_unique<HookedDevice>(comm::make_local_device(hub), hooks[rank]);
  };
  return run_world(
      {.degrees = degrees, .size = static_cast<int>(hooks.size()), .axes = axes, .make_device = hooked, .store = {}},
      body);
}

}  // namespace titan::testing
