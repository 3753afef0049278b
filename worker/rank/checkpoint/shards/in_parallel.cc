#include "worker/rank/checkpoint/shards/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace titan::checkpoint {
namespace {

// The failure with the lowest number so far.
class Failure {
 public:
  void note(size_t number, absl::Status status, std::exception_ptr thrown) {
    std::lock_guard lock(mutex_);
    if (any_ && number_ < number) return;
    any_ = true;
    number_ = number;
    status_ = std::move(status);
    thrown_ = std::move(thrown);
  }
  bool any() const { return any_; }
  absl::Status status() const {
    if (thrown_) std::rethrow_exception(thrown_);
    return status_;
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> any_{false};
  size_t number_ = 0;
  absl::Status status_;
  std::exception_ptr thrown_;
};

}  // namespace

absl::Status in_parallel(size_t count, int threads, absl::FunctionRef<absl::Status(size_t)> work) {
  std::atomic<size_t> next{0};
  Failure failure;
  const auto run = [&] {
    while (!failure.any()) {
      const size_t number = next++;
      if (number >= count) return;
      try {
        if (absl::Status status = work(number); !status.ok()) failure.note(number, std::move(status), nullptr);
      } catch (...) {
        failure.note(number, absl::OkStatus(), std::current_exception());
      }
    }
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min(count, static_cast<size_t>(threads)); ++i) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
  return failure.status();
}

}  // namespace titan::checkpoint
