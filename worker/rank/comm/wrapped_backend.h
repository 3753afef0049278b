#pragma once

#include <atomic>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace titan::comm {

// Base of c10d backends that add something to each collective and forward it to another backend. Derived classes
// forward only the operations that Titan uses; the others throw as c10d::Backend does.
class WrappedBackend : public c10d::Backend {
 public:
  void setTimeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
    inner_->setTimeout(timeout);
  }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }
  const std::string getBackendName() const override { return inner_->getBackendName(); }

 protected:
  WrappedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::chrono::milliseconds timeout)
      : c10d::Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), timeout_(timeout) {}

  std::chrono::milliseconds timeout() const { return timeout_; }

  const c10::intrusive_ptr<c10d::Backend> inner_;

 private:
  std::atomic<std::chrono::milliseconds> timeout_;
};

}  // namespace titan::comm
