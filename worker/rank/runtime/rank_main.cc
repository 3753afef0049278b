// titan-rank: one rank of a training job. Contract: common/rank_protocol and docs/worker-protocols.md, "Rank contract".

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "common/base/host/descriptor.h"
#include "common/base/host/file_mask.h"
#include "common/base/host/signals.h"
#include "common/base/version/version.h"
#include "worker/rank/runtime/dry_run/dry_run.h"
#include "worker/rank/runtime/local_ranks.h"
#include "worker/rank/runtime/memory/cpu_memory.h"
#include "worker/rank/runtime/rank_program.h"

namespace titan::runtime {
namespace {

using rank_protocol::ExitCode;

// Set by SIGTERM, by the signals with which schedulers warn, and by the first Ctrl-C. Read at step boundaries.
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested.store(true); };
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  for (const int number : host::kWarningSignals) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    const bool is_nohup = number == SIGHUP && before.sa_handler == SIG_IGN;
    if (!is_nohup) sigaction(number, &action, nullptr);
  }
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);  // A second Ctrl-C kills the process.
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

// Makes the first pass over the heap take a page fault per 2 MiB instead of per 4 KiB (50,000 fewer before the first
// step), and matmuls whose operands span hundreds of MiB miss the TLB less often. It reserves only addresses, for half
// of the machine's memory. The allocation becomes the top of the heap again.
void request_huge_pages() {
  constexpr uintptr_t kHugePage = 2 << 20;
  constexpr int kMappings = 65536;          // malloc's limit, restored below.
  if (mallopt(M_MMAP_MAX, 0) != 1) return;  // Otherwise sizes above M_MMAP_THRESHOLD are outside the heap.
  size_t size = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) / 2 * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* heap = nullptr;
  while (size > kHugePage && !(heap = std::malloc(size))) size /= 2;  // `ulimit -v` or strict overcommit.
  mallopt(M_MMAP_MAX, kMappings);
  if (!heap) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(heap) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(heap) + size) / kHugePage * kHugePage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // Without kernel support nothing changes.
  std::free(heap);
}

// Activations are allocated and freed in the same pattern every step. By default malloc returns large ones to the
// kernel and takes a page fault for each page of the next. These settings keep them (a debug step: 9.5 -> 8.2 s).
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);

  request_huge_pages();
}

// Returns the seconds since this process was started, with the kernel's resolution of 10 ms.
double seconds_since_exec() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  const size_t name_end = text.rfind(')');  // The name may contain spaces.
  std::ifstream uptime_file("/proc/uptime");
  double uptime = 0;
  if (name_end == std::string::npos || !(uptime_file >> uptime)) return 0;
  std::istringstream fields(text.substr(name_end + 2));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // Field 22, counting the process id as the first.
  return std::max(0.0, uptime - std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK)));
}

// Ends the process without destructors, which after a failure would wait for ranks that are gone.
[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
}

int run_dry(const RankJob& job, bool as_json) {
  try {
    const nlohmann::ordered_json result = dry_run(job);
    const std::string text = as_json ? result.dump(1) + "\n" : describe_dry_run(result);
    std::fputs(text.c_str(), stdout);
    return rank_protocol::kExitFinished;
  } catch (...) {
    const Failure failure = current_failure();
    report_failure(failure, "titan-rank: dry run", /*reporter=*/nullptr);
    return failure.exit_code();
  }
}

int run(const std::vector<std::string>& words) {
  const absl::StatusOr<CommandLineOptions> options = parse_options(words);
  if (!options.ok()) {
    std::fprintf(stderr, "titan-rank: %s\n\n%s", std::string(options.status().message()).c_str(), kUsage);
    return rank_protocol::kExitUsage;
  }
  if (options->help) {
    std::fputs(kUsage, stdout);
    return rank_protocol::kExitFinished;
  }
  if (options->version) {
    std::printf("%s\n", version_text("titan-rank", words).c_str());
    return rank_protocol::kExitFinished;
  }
  const absl::StatusOr<RankJob> job = read_job(*options);
  if (!job.ok()) {
    // Also reports it to the node if a run folder is given.
    std::unique_ptr<Reporter> reporter;
    if (!options->run_folder.empty()) {
      auto opened = Reporter::open(options->run_folder, options->rank.value_or(0), system_clock());
      if (opened.ok()) reporter = *std::move(opened);
    }
    report_failure(Failure(rank_protocol::kExitBadConfig, "BAD_CONFIG", std::string(job.status().message())),
                   "titan-rank", reporter.get());
    leave(rank_protocol::kExitBadConfig);
  }
  // Before the first file of the job is created.
  if (const auto mask = host::parse_umask(job->config.job.umask)) ::umask(*mask);
  const double before_main = seconds_since_exec();
  at::set_num_threads(job->threads);  // Before the first operation: threads that have computed keep their number.
  if (job->mode == CommMode::kDryRun) leave(run_dry(*job, options->json));
  if (job->mode == CommMode::kLocalThreads) leave(run_local_ranks(*job, &stop_requested, before_main));

  // Not destroyed on failure; see leave().
  auto* context = make_context(*job, &stop_requested).release();
  auto* trainer = new std::unique_ptr<Trainer>;
  try {
    const ExitCode code = run_rank(*job, /*hub=*/nullptr, before_main, *context, *trainer);
    trainer->reset();  // Closes the outputs.
    leave(code);
  } catch (...) {
    const Failure failure = current_failure();
    report_failure(failure, "titan-rank", context->reporter.get());
    leave(failure.exit_code());
  }
}

}  // namespace
}  // namespace titan::runtime

int main(int argc, char** argv) {
  // This rank reports a lost peer in one line, and LibTorch would add a C++ stack as a warning.
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);  // The profiler warns about missing GPUs.
  c10::initLogging();
  titan::runtime::keep_freed_memory();
  titan::host::raise_descriptor_limit();  // Rank 0 accepts one or two connections from every other rank.
  titan::runtime::install_cpu_allocator();
  titan::runtime::install_signal_handlers();
  return titan::runtime::run({argv + 1, argv + argc});
}
