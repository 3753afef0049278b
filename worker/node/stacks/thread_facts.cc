#include "worker/node/stacks/thread_facts.h"

#include <dirent.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"

namespace titan::stacks {
namespace {

// Returns the first word of a file of /proc; empty if it cannot be read.
std::string first_word(const std::string& path) {
  const absl::StatusOr<std::string> text = host::read_file(path);
  return text.ok() ? text->substr(0, text->find_first_of(" \n")) : "";
}

}  // namespace

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> threads;
  DIR* const folder = ::opendir(absl::StrCat("/proc/", pid, "/task").c_str());
  if (folder == nullptr) return threads;
  while (const dirent* const item = ::readdir(folder)) {
    const pid_t tid = std::atoi(item->d_name);
    if (tid > 0) threads.push_back(tid);
  }
  ::closedir(folder);
  std::ranges::sort(threads, {}, [pid](pid_t tid) { return std::pair(tid != pid, tid); });
  return threads;
}

ThreadFacts facts_of(pid_t pid, pid_t tid) {
  ThreadFacts facts{tid};
  const absl::StatusOr<std::string> stat = host::read_file(absl::StrCat("/proc/", pid, "/task/", tid, "/stat"));
  if (!stat.ok()) return facts;
  // The name in parentheses may contain anything, including parentheses and spaces.
  const size_t begin = stat->find('('), end = stat->rfind(')');
  if (begin == std::string::npos || end < begin || end + 2 >= stat->size()) return facts;
  facts.name = printable(stat->substr(begin + 1, end - begin - 1));
  facts.state = (*stat)[end + 2];
  return facts;
}

const char* state_name(char state) {
  switch (state) {
    case 'R':
      return "running";
    case 'S':
    case 'I':
      return "sleeping";
    case 'D':
      return "waiting in the kernel";
    case 'T':
      return "stopped";
    case 't':
      return "stopped by a tracer";
    case 'Z':
    case 'X':
      return "ended";
  }
  return "gone";
}

std::string kernel_place(pid_t pid, pid_t tid) {
  const std::string folder = absl::StrCat("/proc/", pid, "/task/", tid);
  const std::string place = printable(first_word(folder + "/wchan"));
  const std::string call = first_word(folder + "/syscall");  // "running", or a number; -1: none.
  std::string text = place == "0" ? "" : place;
  if (call.empty() || call == "running" || absl::StartsWith(call, "-")) return text;
  return absl::StrCat(text, text.empty() ? "" : ", ", "system call ", printable(call));
}

std::string printable(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace titan::stacks
