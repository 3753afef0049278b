#include "worker/node/stacks/report.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/spool.h"
#include "worker/node/shim/process.h"

namespace titan::stacks {
namespace {

constexpr size_t kMaxBytes = rank_protocol::kStacksBytes;
constexpr char kCut[] = "... the rest is left out: more than 256 KiB\n";
constexpr size_t kNamedThreads = 8;

std::string text_of(const Frame& frame) {
  if (frame.file == nullptr) return absl::StrCat("0x", absl::Hex(frame.address));
  const Function& function = frame.file->at(frame.call());
  const std::string where = absl::StrCat(" (", frame.file->name(), ")");
  if (function.name.empty()) return absl::StrCat("0x", absl::Hex(frame.address), where);
  return absl::StrCat(function.name, "+0x", absl::Hex(frame.address - function.begin), where);
}

// Returns the same key for equal stacks. Threads that compute are at different instructions of the same function, so
// the innermost frame is identified by its function.
std::string key_of(const ThreadStack& thread) {
  std::string key = absl::StrCat(thread.missing, "\n", thread.kernel, "\n");
  for (size_t i = 0; i < thread.stack.frames.size(); ++i) {
    const Frame& frame = thread.stack.frames[i];
    const Function* const function = frame.file == nullptr ? nullptr : &frame.file->at(frame.call());
    const bool named = function != nullptr && !function->name.empty();
    absl::StrAppend(&key, reinterpret_cast<uintptr_t>(frame.file), " ",
                    i == 0 && named ? function->begin : frame.address, "\n");
  }
  return key;
}

std::string title(const std::vector<const ThreadStack*>& threads) {
  std::string text = absl::StrCat(threads.size(), threads.size() == 1 ? " thread:" : " threads:");
  for (size_t i = 0; i < threads.size(); ++i) {
    if (i == kNamedThreads) return absl::StrCat(text, ", ...");
    const ThreadFacts& facts = threads[i]->facts;
    absl::StrAppend(&text, i == 0 ? " " : ", ", facts.tid, " (", facts.name, ") ", state_name(facts.state));
  }
  return text;
}

std::string block(const std::vector<const ThreadStack*>& threads) {
  const ThreadStack& first = *threads.front();
  std::string text = absl::StrCat("\n", title(threads), "\n");
  for (size_t i = 0; i < first.stack.frames.size(); ++i) {
    absl::StrAppend(&text, "  #", i, " ", text_of(first.stack.frames[i]), "\n");
  }
  if (first.stack.more) absl::StrAppend(&text, "  ... more frames\n");
  if (first.missing.empty()) return text;
  absl::StrAppend(&text, "  no stack: ", first.missing);
  return absl::StrCat(text, first.kernel.empty() ? "" : absl::StrCat("; in the kernel: ", first.kernel), "\n");
}

}  // namespace

std::string report(const ProcessStacks& process) {
  if (process.threads.empty()) return absl::StrCat("process ", process.pid, " does not exist\n");
  std::vector<std::vector<const ThreadStack*>> blocks;  // In the order of their first threads.
  std::map<std::string, size_t> places;
  for (const ThreadStack& thread : process.threads) {
    const auto [place, is_new] = places.try_emplace(key_of(thread), blocks.size());
    if (is_new) blocks.emplace_back();
    blocks[place->second].push_back(&thread);
  }
  const size_t count = process.threads.size();
  std::string text = absl::StrCat("process ", process.pid, " ", process.threads.front().facts.name, ", ", count,
                                  count == 1 ? " thread\n" : " threads\n");
  for (const std::vector<const ThreadStack*>& threads : blocks) {
    const std::string more = block(threads);
    if (text.size() + more.size() + sizeof(kCut) > kMaxBytes) return text + kCut;
    text += more;
  }
  return text;
}

ProcessStacks without_stacks(pid_t pid, const std::string& why) {
  ProcessStacks process{pid};
  for (const pid_t tid : threads_of(pid)) {
    process.threads.push_back({facts_of(pid, tid), {}, why, kernel_place(pid, tid)});
  }
  return process;
}

namespace {

ThreadStack stack_of(const Capture& capture, pid_t pid, size_t max_frames, Unwinder& unwinder) {
  ThreadStack thread{capture.facts, {}, capture.missing.empty() ? unwinder.problem() : capture.missing, ""};
  if (thread.missing.empty()) {
    thread.stack = unwinder.follow(capture, max_frames);
  } else {
    thread.kernel = kernel_place(pid, capture.facts.tid);
  }
  return thread;
}

// Returns a living thread, whose id gives access to the process's memory: the main thread may have ended first.
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

void capture_process(pid_t pid, int64_t deadline_nanos, size_t max_frames, ElfFiles& files,
                     const std::function<void(const ProcessStacks&)>& emit) {
  const int64_t now = shim::monotonic_nanos();
  const std::vector<Capture> captures = capture_threads(pid, now + (deadline_nanos - now) / 2);
  Unwinder unwinder(one_that_lives(captures, pid), files);
  ProcessStacks process{pid};
  for (const Capture& capture : captures) process.threads.push_back(stack_of(capture, pid, max_frames, unwinder));
  emit(process);
  name_functions(process);
  emit(process);
}

}  // namespace titan::stacks
