#pragma once

#include <ATen/record_function.h>

#include <memory>

namespace titan::testing {

// During its lifetime, calls Watcher::entered(name) and Watcher::left(name) around every LibTorch operation on any
// thread.
template <typename Watcher>
class OperationWatch {
 public:
  OperationWatch(const OperationWatch&) = delete;
  OperationWatch& operator=(const OperationWatch&) = delete;

 protected:
  OperationWatch()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::FUNCTION}))) {}
  ~OperationWatch() { at::removeCallback(handle_); }

 private:
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    Watcher::entered(call.name());
    return nullptr;
  }
  static void leave(const at::RecordFunction& call, at::ObserverContext* /*context*/) { Watcher::left(call.name()); }

  at::CallbackHandle handle_;
};

}  // namespace titan::testing
