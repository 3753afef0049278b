#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <vector>

// What the threads of a target are in, by names that its symbols have.
extern "C" {
void titan_test_spins(std::atomic<long>* counter);
void titan_test_sleeps();
void titan_test_waits_for_a_condition();
void titan_test_waits_for_a_mutex();
void titan_test_reads_a_pipe();
void titan_test_waits_for_vfork();
void titan_test_ends();
}

namespace titan::stacks {

// A process with one thread in each function that is named, the first of them its main thread. It is killed at the end.
class Target {
 public:
  struct Thread {
    void (*function)() = nullptr;  // Null: titan_test_spins.
    const char* name = "thread";
  };
  // Returns once each thread is where it stays. Of this user, or, for root, of another one.
  explicit Target(std::vector<Thread> threads, uid_t user = ::geteuid());
  ~Target();
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  pid_t pid() const { return pid_; }
  long count() const { return page_->count; }
  // A thread that spins goes on, and none is stopped or traced.
  bool goes_on() const;
  // All are stopped again: from the tracer back there they pass through the kernel.
  bool stays_stopped() const;

 private:
  struct Page {
    std::atomic<long> count = 0;
    std::atomic<int> arrived = 0;
  };
  [[noreturn]] void run(const std::vector<Thread>& threads, uid_t user);

  Page* const page_;
  pid_t pid_ = 0;
};

}  // namespace titan::stacks
