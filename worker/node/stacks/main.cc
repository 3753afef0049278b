// titan-stacks PID...: prints the stacks of all threads of running processes without disturbing them.

#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/host/descriptor.h"
#include "common/base/host/file_io.h"
#include "common/base/version/version.h"
#include "worker/node/stacks/supervise.h"

namespace {

constexpr char kUsage[] =
    "Usage: titan-stacks [OPTIONS] PID...\n"
    "\n"
    "Prints the stacks of all threads of running processes. They keep running, and processes that are stopped stay "
    "so.\n"
    "\n"
    "  --deadline-milliseconds N   Time for all processes together (5000). After that only the kernel's information "
    "is printed.\n"
    "  --most-frames N             Frames per stack (64).\n"
    "  --out-dir DIR               Write files there instead: PID.stacks, complete as soon as they have their name.\n"
    "  --name PID=FILE             With --out-dir: this file for that process.\n"
    "  --version                   Print version and revision; with --verbose also what the program was built with.\n"
    "  --help                      Print this text.\n"
    "\n"
    "Exit code: 0 if every process exists and was printed, 1 otherwise, 2 for wrong usage.\n";

struct Arguments {
  titan::stacks::Request request;
  std::string out_dir;
  std::map<pid_t, std::string> names;
};

int wrong(const std::string& what) {
  std::fprintf(stderr, "titan-stacks: %s (see --help)\n", what.c_str());
  return 2;
}

bool parse_name(const std::string& text, Arguments& to) {
  const size_t equals = text.find('=');
  int pid = 0;
  if (equals == std::string::npos || !absl::SimpleAtoi(text.substr(0, equals), &pid)) return false;
  const std::string file = text.substr(equals + 1);
  if (file.empty() || file[0] == '.' || file.find('/') != std::string::npos) return false;
  to.names[pid] = file;
  return true;
}

// Returns what is wrong with the arguments, or an empty string.
std::string parse(int argc, char** argv, Arguments& to) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    int number = 0;
    if (flag[0] != '-') {
      if (!absl::SimpleAtoi(flag, &number) || number <= 0) return absl::StrCat("'", flag, "' is not a process id");
      to.request.pids.push_back(number);
      continue;
    }
    if (i + 1 >= argc) return absl::StrCat("unknown flag or missing value: ", flag);
    const std::string value = argv[++i];
    const bool is_number = absl::SimpleAtoi(value, &number) && number >= 0;
    if (flag == "--deadline-milliseconds" && is_number) {
      to.request.deadline_milliseconds = number;
    } else if (flag == "--most-frames" && is_number && number > 0) {
      to.request.max_frames = static_cast<size_t>(number);
    } else if (flag == "--out-dir") {
      to.out_dir = value;
    } else if (flag != "--name" || !parse_name(value, to)) {
      return absl::StrCat("unknown flag or wrong value: ", flag, " ", value);
    }
  }
  if (to.request.pids.empty()) return "no process id is given";
  return "";
}

// Ends this process after the time limit, whatever happens.
void end_after(int64_t milliseconds) {
  const itimerval limit{{}, {milliseconds / 1000, milliseconds % 1000 * 1000}};
  ::signal(SIGALRM, SIG_DFL);
  ::setitimer(ITIMER_REAL, &limit, nullptr);
}

// Makes this process the first to be killed when memory is short.
void offer_to_oom_killer() {
  const titan::host::Descriptor score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (score) (void)!::write(score.get(), "1000", 4);
}

bool put(const Arguments& arguments, pid_t pid, const std::string& text) {
  if (arguments.out_dir.empty()) {
    std::fputs(text.c_str(), stdout);
    return std::fflush(stdout) == 0;
  }
  const auto name = arguments.names.find(pid);
  const std::string file = name != arguments.names.end() ? name->second : absl::StrCat(pid, ".stacks");
  const absl::Status written = titan::host::replace_file(absl::StrCat(arguments.out_dir, "/", file), text);
  if (!written.ok()) std::fprintf(stderr, "titan-stacks: %s\n", written.ToString().c_str());
  return written.ok();
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") return std::fputs(kUsage, stdout) < 0;
    if (flag == "--version") return std::puts(titan::version_text("titan-stacks", {argv, argv + argc}).c_str()) < 0;
  }
  Arguments arguments;
  const std::string problem = parse(argc, argv, arguments);
  if (!problem.empty()) return wrong(problem);
  constexpr int64_t kSlackMilliseconds = 2000;
  end_after(arguments.request.deadline_milliseconds + kSlackMilliseconds);
  offer_to_oom_killer();
  ::signal(SIGCHLD, SIG_DFL);
  bool all = true, first = true;
  titan::stacks::supervise(arguments.request, [&](size_t place, const titan::stacks::Answer& answer) {
    const std::string gap = arguments.out_dir.empty() && !first ? "\n" : "";
    first = false;
    all &= put(arguments, arguments.request.pids[place], gap + answer.text) && answer.anything;
  });
  return all ? 0 : 1;
}
