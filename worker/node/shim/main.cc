// titan-shim --spec FILE: the parent of one attempt's ranks on one node. Started by titan-worker, which it outlives.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/base/host/signals.h"
#include "common/base/version/version.h"
#include "worker/node/shim/rank_process.h"
#include "worker/node/shim/shim.h"

namespace {

constexpr char kUsage[] =
    "Usage: titan-shim --spec RUN_FOLDER/spec.json [--control-fd FD]\n"
    "\n"
    "Starts and watches the ranks of one attempt on this node. titan-worker starts it; there is no need to start it by "
    "hand.\n"
    "\n"
    "  --spec FILE       What to run. Its folder is the run folder: launch.json, logs, event spools and exit records "
    "are there.\n"
    "  --control-fd FD   A connected socket of the daemon that starts this shim.\n"
    "  --version         Print version and revision; with --verbose after it also what the program was built with.\n"
    "  --help            Print this text.\n"
    "\n"
    "SIGTERM: the ranks save at the next step edge and stop.\n";

}  // namespace

int main(int argc, char** argv) {
  std::string spec;
  int control = -1;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") return std::fputs(kUsage, stdout) < 0;
    if (flag == "--version") return std::puts(titan::version_text("titan-shim", {argv, argv + argc}).c_str()) < 0;
    if (i + 1 < argc && flag == "--spec") {
      spec = argv[++i];
    } else if (i + 1 < argc && flag == "--control-fd") {
      control = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr, "titan-shim: unknown flag or missing value: %s\n%s", flag.c_str(), kUsage);
      return 2;
    }
  }
  if (spec.empty()) {
    std::fprintf(stderr, "titan-shim: --spec is missing\n%s", kUsage);
    return 2;
  }
  ::setsid();  // Fails if this process already leads a session, which is fine.
  for (const int number : titan::shim::kIgnoredByShim) ::signal(number, SIG_IGN);
  // The ranks need their parent; `titanctl run` and the ranks handle these signals.
  titan::host::ignore_warning_signals();
  sigset_t watched;  // Blocked before any thread exists, so that all threads inherit it.
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  sigaddset(&watched, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  titan::shim::protect_from_oom_killer();
  const size_t slash = spec.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : spec.substr(0, slash);
  absl::StatusOr<std::unique_ptr<titan::shim::Shim>> shim =
      titan::shim::Shim::create(folder, titan::host::Descriptor(control));
  if (!shim.ok()) {
    std::fprintf(stderr, "titan-shim: %s\n", shim.status().ToString().c_str());
    return 1;
  }
  (*shim)->run();
  return 0;
}
