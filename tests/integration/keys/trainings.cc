// Runs small trainings and dry runs one after another in this process, for tests that read their output. Each line of
// standard input is a JSON array: an existing folder, then the words of titan-rank. The ranks are threads (comm.mode
// local_tensor), or there is one (fake_backend). Each run writes to the folder: log (its output), facts.json {exit
// code, the process's settings of threads, kernels and determinism, and the operations over many tensors that it
// called}, dry.json (a dry run's result).
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "worker/rank/kernels/choice.h"
#include "worker/rank/runtime/dry_run/dry_run.h"
#include "worker/rank/runtime/local_ranks.h"
#include "worker/rank/runtime/memory/cpu_memory.h"
#include "worker/rank/runtime/rank_program.h"
#include "worker/rank/runtime/resources.h"
#include "worker/rank/runtime/step/parallel_setup.h"

namespace {

using nlohmann::json;
using namespace titan::runtime;

// Different implementations of an optimizer's step may give the same bits; their calls distinguish them.
class ManyTensorCalls {
 public:
  ManyTensorCalls() {
    const auto note = [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
      const std::string name = call.name();
      if (name.rfind("aten::_fused_", 0) != 0 && name.rfind("aten::_foreach_", 0) != 0) return nullptr;
      const std::scoped_lock lock(mutex_);
      names_.insert(name);
      return nullptr;
    };
    at::addGlobalCallback(at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}));
  }
  static std::set<std::string> take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(names_, {});
  }

 private:
  static inline std::mutex mutex_;
  static inline std::set<std::string> names_;
};

int run_dry(const RankJob& job, const std::string& folder) {
  try {
    auto result = dry_run(job);
    result.erase("seconds");
    std::ofstream(folder + "/dry.json") << result.dump(1);
    return 0;
  } catch (...) {
    const Failure failure = current_failure();
    report_failure(failure, "titan-rank: dry run", /*reporter=*/nullptr);
    return failure.exit_code();
  }
}

json run(const std::string& folder, const std::vector<std::string>& words) {
  at::globalContext().setDeterministicAlgorithms(false, false);
  titan::kernels::choose("reference");
  const auto options = parse_options(words);
  const auto job = options.ok() ? read_job(*options) : options.status();
  if (!job.ok()) {
    std::fprintf(stderr, "titan-rank: %s\n", std::string(job.status().message()).c_str());
    return {{"code", titan::rank_protocol::kExitBadConfig}};
  }
  at::set_num_threads(job->threads);
  for (const std::string& warning : job->warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  const int code =
      job->mode == CommMode::kDryRun ? run_dry(*job, folder) : static_cast<int>(run_local_ranks(*job, nullptr, 0));
  const at::Context& context = at::globalContext();
  const std::optional<titan::kernels::Level> level = titan::kernels::chosen_level();
  const titan::kernels::DeviceParts gpu = parts_on_gpu(job->config);
  return {{"code", code},
          {"threads", job->threads},
          {"kernels", level ? titan::kernels::name(*level) : "reference"},
          {"gpu_kernels", {gpu.model, gpu.loss}},  // The kernels that ranks would choose on GPUs.
          {"gpu_graphs", graphs_on_gpu(job->config)},
          {"deterministic", context.deterministicAlgorithms()},
          {"warn_only", context.deterministicAlgorithmsWarnOnly()},
          {"many_tensor_calls", ManyTensorCalls::take()}};
}

}  // namespace

int main() {
  setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);  // Set in rank_main.cc too: Kineto complains about missing GPUs.
  install_cpu_allocator();
  const ManyTensorCalls calls;
  for (std::string line; std::getline(std::cin, line);) {
    auto words = json::parse(line).get<std::vector<std::string>>();
    const std::string folder = words.front();
    words.erase(words.begin());
    const int log = open((folder + "/log").c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close(log);
    const json facts = run(folder, words);
    std::fflush(nullptr);
    std::ofstream(folder + "/facts.json") << facts.dump(1);
  }
  std::fflush(nullptr);
  std::_Exit(0);  // Failed ranks are left as they are: nothing waits for them.
}
