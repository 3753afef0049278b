#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <vector>

// Functions in which a target's threads wait; their names are in the symbol table.
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

// A process with one thread in each named function, the first one its main thread. The destructor kills it.
class Target {
 public:
  struct Thread {
    void (*function)() = nullptr;  // Null means titan_test_spins.
    const char* name = "thread";
  };
  // Returns once each thread has reached its function. `user`: another user, for root only.
  explicit Target(std::vector<Thread> threads, uid_t user = ::geteuid());
  ~Target();
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  pid_t pid() const { return pid_; }
  long count() const { return page_->count; }
  // Returns whether spinning threads continue and no thread is stopped or traced.
  bool keeps_running() const;
  // Returns whether all threads are stopped again: after the tracer releases them they pass through the kernel.
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
