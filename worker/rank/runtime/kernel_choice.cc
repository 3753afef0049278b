#include "worker/rank/runtime/kernel_choice.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/rank/kernels/device_kernels.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/step/parallel_setup.h"
#include "worker/rank/runtime/step/reporter.h"

namespace titan::runtime {
namespace {

bool says_so(const RankJob& job) { return job.rank == 0 && job.config.training.mixed_precision_param == "bfloat16"; }

}  // namespace

void choose_cpu_kernels(const RankJob& job, const std::string& host) {
  const std::string& wanted = job.config.resources.kernels;
  if (!kernels::choose(wanted)) {
    const std::optional<kernels::Level> best = kernels::best_level();
    throw Failure(rank_protocol::kExitBadConfig, "KERNEL_LEVEL",
                  absl::StrCat("resources.kernels is ", wanted, ", but the best level of this machine, ", host, ", is ",
                               best ? std::string(kernels::name(*best)) : "below avx2", "; auto takes what there is"));
  }
  if (!says_so(job)) return;
  const std::optional<kernels::Level> level = kernels::chosen_level();
  log_line(absl::StrCat("bfloat16 is computed by ",
                        level ? "Titan's kernels for " + std::string(kernels::name(*level)) : "LibTorch's operations",
                        " (resources.kernels = ", wanted, ")"));
}

void choose_gpu_kernels(const RankJob& job) {
  const kernels::DeviceParts parts = parts_on_gpu(job.config);
  kernels::choose_on_device(kernels::cuda_kernels(), parts);
  if (!says_so(job)) return;
  const char* what = parts.model && parts.loss ? "rows and cross-entropy"
                     : parts.model             ? "rows"
                     : parts.loss              ? "cross-entropy"
                                               : "nothing";
  log_line(absl::StrCat("of bfloat16, Titan's kernels compute ", what, ", LibTorch's operations the rest"));
}

}  // namespace titan::runtime
