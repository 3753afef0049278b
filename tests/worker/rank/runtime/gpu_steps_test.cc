// Tests steps on a CUDA device once the first ones are done: the host waits for nothing but the reads that
// docs/decisions/engine.md names, and the allocator requests no memory from the driver.

#include <ATen/record_function.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/common/rank_protocol/temp_folder.h"
#include "tests/worker/rank/runtime/gpu_world.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/nn/row_groups.h"
#include "worker/rank/runtime/rank_program.h"

namespace titan::runtime {
namespace {

using testing::GpuTest;
using testing::rehearses;
using testing::tested_device;

constexpr int kSettled = 3;  // The last step that may differ from later ones.
constexpr int kSteps = 7;

// Forbids host waits inside the steps after kSettled. At the beginning of each step it reads how often memory was
// requested from the driver, or -1 if the device does not report it.
class SettledSteps {
 public:
  SettledSteps()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(enter).scopes({at::RecordScope::USER_SCOPE}))) {
    device_ = tested_device().value();
    allocations_.clear();
  }
  ~SettledSteps() {
    at::removeCallback(handle_);
    device_.reset();
  }
  SettledSteps(const SettledSteps&) = delete;
  SettledSteps& operator=(const SettledSteps&) = delete;

  static const std::map<int, int64_t>& allocations() { return allocations_; }  // By step, from 1.

 private:
  // Lives as long as the step's scope.
  struct Forbidden final : at::ObserverContext {
    device::ForbidHostWaits forbidden{*device_};
  };

  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    constexpr const char* kStep = "ProfilerStep#";
    if (!absl::StartsWith(call.name(), kStep)) return nullptr;
    const int step = std::atoi(call.name() + std::strlen(kStep));
    allocations_[step] = device_->memory().driver_allocations;
    if (step <= kSettled) return nullptr;
    return std::make_unique<Forbidden>();
  }

  const at::CallbackHandle handle_;
  static inline std::unique_ptr<device::Device> device_;
  static inline std::map<int, int64_t> allocations_;
};

// Resets a rank's choices for its process, so that they do not affect the other tests.
struct ChoicesOfAProcess {
  ~ChoicesOfAProcess() {
    kernels::choose("reference");
    kernels::choose_on_device(nullptr, {});
    nn::set_use_grouped_gemm(true);
  }
};

// Trains with titan-rank's own code, in this process. A failure throws, and leaks objects that must not be destroyed
// then.
void train(const std::string& words) {
  const rank_protocol::TempFolder folder;
  const std::string config = folder.file("job.toml");
  std::ofstream(config) << "";
  const std::string line = absl::StrCat(
      "--config ", config, " --job.dump_folder ", folder.file("dump"), " --resources.device ",
      rehearses() ? "cpu" : "cuda", " --resources.ranks 1 --resources.pin_cpus off --training.steps ", kSteps,
      " --training.seq_len 128 --training.local_batch_size 2 --training.global_batch_size 4 ", words);
  const RankJob job = read_job(parse_options(absl::StrSplit(line, ' ', absl::SkipEmpty())).value()).value();
  const ChoicesOfAProcess chosen;
  auto* context = make_context(job, /*stop_signal=*/nullptr).release();
  auto* trainer = new std::unique_ptr<Trainer>;
  EXPECT_EQ(run_rank(job, /*hub=*/nullptr, /*before_main=*/0, *context, *trainer), rank_protocol::kExitFinished);
  delete trainer;
  delete context;
}

class GpuStepsTest : public GpuTest, public ::testing::WithParamInterface<std::string> {};

// A wait inside a step throws where it happens, and fails the job. Logged steps are watched, too: the code that reads
// their values allows its own reads.
TEST_P(GpuStepsTest, SettleAfterTheThird) {
  const SettledSteps settled;
  ASSERT_NO_THROW(train(absl::StrCat("--metrics.log_freq 2 ", GetParam())));
  const std::map<int, int64_t>& allocations = SettledSteps::allocations();
  ASSERT_EQ(allocations.size(), kSteps);
  for (int step = kSettled + 2; step <= kSteps; ++step) {
    EXPECT_EQ(allocations.at(step), allocations.at(kSettled + 1)) << "between step " << kSettled << " and " << step;
  }
  if (!rehearses()) {
    EXPECT_GT(allocations.at(kSteps), 0);
  }
}

const std::string kDense = "--model.name llama3 --model.flavor debugmodel",
                  kExperts = "--model.name deepseek_v3 --model.flavor debugmodel",
                  kMode = " --activation_checkpoint.mode ",
                  kFloat8 = " --model.converters quantize.linear.float8 --quantize.linear.float8.filter_fqns output";
INSTANTIATE_TEST_SUITE_P(Jobs, GpuStepsTest,
                         ::testing::Values(kDense + kMode + "none", kDense + kMode + "full --optimizer.qk_clip 100",
                                           kDense + kMode + "selective --compile.enable",
                                           kDense + kMode + "none" + kFloat8, kExperts + kMode + "full"));

// Shows that the test above can fail.
TEST_F(GpuTest, ForbiddenWaitsThrow) {
  TITAN_SKIP_IN_REHEARSAL();
  const at::Tensor one = at::ones({1}, on_device());
  device::AsyncRead late(one);
  {
    const device::ForbidHostWaits forbidden(*device_);
    EXPECT_THROW(one.item<float>(), c10::Error);
    EXPECT_THROW(one.cpu(), c10::Error);
    EXPECT_THROW(device_->synchronize(), c10::Error);
    EXPECT_THROW(late.wait(), c10::Error);
    const device::AllowHostWaitGuard named;
    EXPECT_EQ(one.item<float>(), 1.0F);
    EXPECT_EQ(late.wait().item<float>(), 1.0F);
  }
  EXPECT_EQ(one.item<float>(), 1.0F);
  device_->synchronize();
}

// The block is larger than anything that the allocator has cached.
TEST_F(GpuTest, DriverAllocationsAreCounted) {
  TITAN_SKIP_IN_REHEARSAL();
  const device::DeviceMemory before = device_->memory();
  const at::Tensor large = at::empty({before.peak_reserved + (int64_t{64} << 20)}, on_device(at::kByte));
  EXPECT_GT(device_->memory().driver_allocations, before.driver_allocations);
}

}  // namespace
}  // namespace titan::runtime
