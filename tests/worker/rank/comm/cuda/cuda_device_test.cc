// Tests the CUDA library in a process that starts without it, like titan-rank: with or without a device.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>

#include "common/rank_protocol/launch.h"
#include "worker/rank/comm/backend_aborts.h"
#include "worker/rank/comm/make_device.h"
#include "worker/rank/device/device.h"
#include "worker/rank/kernels/device_kernels.h"

namespace titan::comm {
namespace {

// LibTorch looks for its CUDA half once and remembers the result. A rank must not trigger that before it opens its
// device.
TEST(CudaDeviceTest, FindsTheCudaLibraryLoadedLater) {
  at::set_num_threads(2);
  const auto device = make_device("cuda", 0);
  EXPECT_TRUE(at::detail::getCUDAHooks().hasCuDNN()) << device.status();
  if (device.ok()) {
    EXPECT_TRUE((*device)->torch_device().is_cuda());
    return;
  }
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition) << device.status();
  EXPECT_EQ(device.status().message().find("CUDA device 0: "), 0U) << device.status();
  EXPECT_EQ(device.status().message().find('\n'), absl::string_view::npos) << "one line: " << device.status();
}

// make_device() sets the variables that CUDA's libraries read when they load. The user's own values stay.
TEST(CudaDeviceTest, SetsLibraryDefaults) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", /*overwrite=*/1);
  make_device("cuda", 0).IgnoreError();
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "8");
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
}

// The library contains Titan's own kernels, which accept only memory of a GPU.
TEST(CudaDeviceTest, ProvidesKernels) {
  make_device("cuda", 0).IgnoreError();
  const kernels::DeviceKernels* kernels = kernels::cuda_kernels();
  ASSERT_NE(kernels, nullptr);
  EXPECT_FALSE(kernels->on_host());
  EXPECT_FALSE(kernels->run(kernels::RopeRotation{.tokens = 1, .dim = 15}));
  EXPECT_FALSE(kernels->run(kernels::SwigluForward{.rows = 1, .width = 1, .type = kernels::Dtype::kF32}));
}

// hold_watchdogs() reaches the CUDA library: a rank that has failed exits with its own code, not with the watchdog's.
TEST(CudaDeviceDeathTest, FailedRankExitsBeforeTheWatchdogAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave = [] {
    make_device("cuda", 0).IgnoreError();
    hold_watchdogs();
    std::promise<void> dies;
    std::thread watchdog([&dies] {
      dies.set_value();
      C10_THROW_ERROR(DistBackendError, "NCCL communicator was aborted");
    });
    dies.get_future().wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // Time enough for the watchdog to abort.
    std::_Exit(rank_protocol::kExitUserError);
  };
  EXPECT_EXIT(leave(), ::testing::ExitedWithCode(rank_protocol::kExitUserError), "");
}

TEST(CudaDeviceTest, OtherNamesAreRefused) {
  const auto device = make_device("tpu", 0);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace titan::comm
