#include "controller/cli/bench/peak_memory.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;

constexpr auto kPause = std::chrono::milliseconds(200);

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

int64_t pss_of(pid_t pid) {
  const std::string text = read(absl::StrCat("/proc/", pid, "/smaps_rollup"));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, "Pss:")) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kibibytes = 0;
    if (words.size() > 1 && absl::SimpleAtoi(words[1], &kibibytes)) return kibibytes * 1024;
  }
  return 0;
}

std::set<pid_t> processes() {
  std::set<pid_t> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &pid)) out.insert(pid);
  }
  return out;
}

}  // namespace

PeakMemory::PeakMemory(std::string mark) : mark_(std::move(mark)), others_(processes()), thread_([this] { watch(); }) {}

PeakMemory::~PeakMemory() {
  {
    const sync::Lock lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PeakMemory::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPause, [this] { return over_; })) {
    lock.unlock();
    bytes_ = std::max(bytes_.load(), look());
    lock.lock();
  }
}

int64_t PeakMemory::look() {
  const std::set<pid_t> there = processes();
  std::erase_if(others_, [&there](pid_t pid) { return !there.contains(pid); });
  int64_t sum = 0;
  for (const pid_t pid : there) {
    if (!others_.contains(pid) && carries_mark(pid)) sum += pss_of(pid);
  }
  return sum;
}

// A process has its parent's environment until it runs another program, so a "no" may become a "yes".
bool PeakMemory::carries_mark(pid_t pid) {
  if (ours_.contains(pid)) return true;
  for (absl::string_view word : absl::StrSplit(read(absl::StrCat("/proc/", pid, "/environ")), '\0')) {
    if (word == mark_) return ours_.insert(pid).second;
  }
  return false;
}

}  // namespace titan::cli
