#include "worker/node/stacks/look.h"

#include <map>

#include "worker/node/shim/process.h"

namespace titan::stacks {
namespace {

ThreadStack stack_of(const Capture& capture, pid_t pid, size_t most_frames, Unwinder& unwinder) {
  ThreadStack thread{capture.facts, {}, capture.missing.empty() ? unwinder.problem() : capture.missing, ""};
  if (thread.missing.empty()) {
    thread.stack = unwinder.follow(capture, most_frames);
  } else {
    thread.kernel = kernel_place(pid, capture.facts.tid);
  }
  return thread;
}

// The process's memory is asked for by the number of one of its threads: the main one may have ended before the others.
pid_t one_that_lives(const std::vector<Capture>& captures, pid_t pid) {
  for (const Capture& capture : captures) {
    if (capture.missing.empty()) return capture.facts.tid;
  }
  return pid;
}

void name_functions(const ProcessStacks& process) {
  std::map<ElfFile*, std::vector<uint64_t>> addresses;
  for (const ThreadStack& thread : process.threads) {
    for (const Frame& frame : thread.stack.frames) {
      if (frame.file != nullptr) addresses[frame.file].push_back(frame.call());
    }
  }
  for (auto& [file, asked] : addresses) file->look_up(std::move(asked));
}

}  // namespace

void look_at(pid_t pid, int64_t deadline_nanos, size_t most_frames, ElfFiles& files,
             const std::function<void(const ProcessStacks&)>& tell) {
  const int64_t now = shim::monotonic_nanos();
  const std::vector<Capture> captures = capture_threads(pid, now + (deadline_nanos - now) / 2);
  Unwinder unwinder(one_that_lives(captures, pid), files);
  ProcessStacks process{pid};
  for (const Capture& capture : captures) process.threads.push_back(stack_of(capture, pid, most_frames, unwinder));
  tell(process);
  name_functions(process);
  tell(process);
}

}  // namespace titan::stacks
