#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <string>

namespace titan::testing {

// Counts the passes, on any thread, in which the code of "layers.1" runs on the host.
class LayerPasses {
 public:
  LayerPasses()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(enter).scopes({at::RecordScope::USER_SCOPE}))) {
    forward_ = backward_ = 0;
  }
  ~LayerPasses() { at::removeCallback(handle_); }
  LayerPasses(const LayerPasses&) = delete;
  LayerPasses& operator=(const LayerPasses&) = delete;
  static int forward() { return forward_; }
  static int backward() { return backward_; }

 private:
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    const std::string name = call.name();
    forward_ += name == "layers.1" ? 1 : 0;
    backward_ += name == "layers.1 backward" ? 1 : 0;
    return nullptr;
  }

  const at::CallbackHandle handle_;
  static inline std::atomic<int> forward_, backward_;
};

}  // namespace titan::testing
