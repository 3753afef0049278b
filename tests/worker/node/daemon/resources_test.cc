// Resources that a node reports.

#include "worker/node/daemon/resources.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/worker/node/daemon/fake_nvml.h"

namespace titan::daemon {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGiB = int64_t{1} << 30;

std::string next_to_this_program(const char* name) {
  return (fs::read_symlink("/proc/self/exe").parent_path() / name).string();
}

// A machine with temporary device files and the fake library.
class GpuTest : public ::testing::Test {
 protected:
  GpuTest() : folder_(fs::temp_directory_path() / absl::StrCat("titan-gpus-", ::getpid())) {
    fs::create_directories(folder_);
    ::unsetenv("FAKE_NVML");
  }
  ~GpuTest() override {
    ::unsetenv("FAKE_NVML");
    fs::remove_all(folder_);
  }

  Resources of(int device_files, const std::string& library = next_to_this_program("libfake_nvml.so"),
               const std::string& devices = "auto") {
    for (int i = 0; i < device_files; ++i) std::ofstream(folder_ / absl::StrCat("nvidia", i));
    absl::StatusOr<Resources> found = find_resources(devices, {(folder_ / "nvidia").string(), library});
    EXPECT_TRUE(found.ok()) << found.status();
    return found.value_or(Resources{});
  }

  const fs::path folder_;
};

TEST(ResourcesTest, ReadsTheFlag) {
  const auto cpu = find_resources("cpu:3");
  ASSERT_TRUE(cpu.ok());
  EXPECT_EQ(cpu->devices, 3);
  EXPECT_GT(cpu->cpu_cores, 0);
  for (const char* bad : {"", "cpu", "cpu:", "cpu:0", "cpu:x", "cpu:2x", "gpu:1", "cpu:-1"}) {
    EXPECT_EQ(find_resources(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_TRUE(find_resources("auto").ok());
}

TEST(ResourcesTest, CpuRankHasItsShareOfTheHostsMemory) {
  const auto cpu = find_resources("cpu:4");
  ASSERT_TRUE(cpu.ok());
  EXPECT_GT(cpu->memory_bytes, 0);
  EXPECT_EQ(cpu->device_memory_bytes, cpu->memory_bytes / 4);
  EXPECT_EQ(cpu->memory_unknown, "");
}

TEST_F(GpuTest, TheSmallestDeviceCounts) {
  const Resources found = of(2);
  EXPECT_EQ(found.device, "cuda");
  EXPECT_EQ(found.devices, 2);
  EXPECT_EQ(found.device_memory_bytes, 40 * kGiB);
  EXPECT_EQ(found.device_model, "Fake GPU 80GB");
  EXPECT_EQ(found.memory_unknown, "");
}

TEST_F(GpuTest, OnlyOfferedDevicesCount) {
  EXPECT_EQ(of(2, next_to_this_program("libfake_nvml.so"), "cuda:1").device_memory_bytes, 80 * kGiB);
}

// A container with the host's device files may open only two of them, or the driver has lost one: CUDA opens two.
TEST_F(GpuTest, MoreDeviceFilesThanTheDriverOpens) {
  const Resources found = of(8);
  EXPECT_EQ(found.devices, 2);
  EXPECT_EQ(found.device_memory_bytes, 40 * kGiB);
  const NvidiaPaths paths = {(folder_ / "nvidia").string(), next_to_this_program("libfake_nvml.so")};
  const absl::Status refused = find_resources("cuda:3", paths).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("requests 3 CUDA devices, this node has 2 (NVIDIA's driver opens no more)"),
            std::string::npos)
      << refused;
}

// A container with some of the host's devices keeps their numbers.
TEST_F(GpuTest, DeviceNumbersNeedNotStartAtZero) {
  for (const int number : {4, 5, 6, 7}) std::ofstream(folder_ / absl::StrCat("nvidia", number));
  for (const char* other : {"nvidiactl", "nvidia-uvm", "nvidia-caps"}) std::ofstream(folder_ / other);
  const Resources found = of(0, (folder_ / "missing.so.1").string());
  EXPECT_EQ(found.devices, 4);
  EXPECT_EQ(found.visible_to_ranks({0, 3}), "0,3") << "CUDA numbers what it can open from 0 on";
}

// The node offers only the devices that a scheduler gave the worker, and ranks get them under those names.
TEST_F(GpuTest, TheWorkersOwnVisibleDevicesAreRespected) {
  const auto given = [this](const std::string& visible, const std::string& devices = "auto") {
    for (int i = 0; i < 8; ++i) std::ofstream(folder_ / absl::StrCat("nvidia", i));
    return find_resources(devices, {.device_files = (folder_ / "nvidia").string(),
                                    .nvml = next_to_this_program("libfake_nvml.so"),
                                    .visible = visible});
  };
  const Resources part = given("1, GPU-5ebe9f43").value();
  EXPECT_EQ(part.devices, 2);
  EXPECT_EQ(part.visible_to_ranks({0}), "1");
  EXPECT_EQ(part.visible_to_ranks({1, 0}), "GPU-5ebe9f43,1");
  EXPECT_EQ(part.device_memory_bytes, 40 * kGiB)
      << "the smallest of all devices, because NVML does not know which are visible";
  EXPECT_EQ(given("1,-1,2").value().devices, 1) << "CUDA stops at the first invalid device";
  EXPECT_EQ(given("").value().device, "cpu");
  const absl::Status refused = given("3", "cuda:2").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("this node has 1 (/dev/nvidia*, CUDA_VISIBLE_DEVICES 3)"), std::string::npos)
      << refused;
}

// A node without the library, or with a broken one, can still train.
TEST_F(GpuTest, WithoutTheLibrary) {
  const Resources found = of(2, (folder_ / "missing.so.1").string());
  EXPECT_EQ(found.devices, 2);
  EXPECT_EQ(found.device_memory_bytes, 0);
  EXPECT_NE(found.memory_unknown.find("missing.so.1"), std::string::npos) << found.memory_unknown;
  EXPECT_NE(found.device_model, "");
}

TEST_F(GpuTest, WrongLibrary) {
  const Resources found = of(1, "libm.so.6");
  EXPECT_EQ(found.device_memory_bytes, 0);
  EXPECT_NE(found.memory_unknown.find("nvmlInit_v2"), std::string::npos) << found.memory_unknown;
}

TEST_F(GpuTest, ALibraryThatFails) {
  for (const auto& [failure, expected] :
       {std::pair{"init", "nvmlInit_v2 fails with 999"}, std::pair{"count", "nvmlDeviceGetCount fails with 999"},
        std::pair{"memory", "device 0 does not report its memory"}}) {
    ::setenv("FAKE_NVML", failure, 1);
    const Resources found = of(2);
    EXPECT_EQ(found.devices, 2);
    EXPECT_EQ(found.device_memory_bytes, 0) << failure;
    EXPECT_NE(found.memory_unknown.find(expected), std::string::npos) << found.memory_unknown;
  }
}

// A hanging driver does not stop the daemon: the node registers and reports it.
TEST_F(GpuTest, HangingDriverDoesNotBlockTheDaemon) {
  const std::string library = next_to_this_program("libfake_nvml.so");
  void* const fake = ::dlopen(library.c_str(), RTLD_NOW);
  ASSERT_NE(fake, nullptr) << ::dlerror();
  const auto hang = reinterpret_cast<decltype(fake_nvml_hang)*>(::dlsym(fake, "fake_nvml_hang"));
  hang(true);
  std::ofstream made(folder_ / "nvidia0");
  const NvidiaPaths paths = {(folder_ / "nvidia").string(), library, absl::Milliseconds(20)};
  const absl::StatusOr<Resources> found = find_resources("auto", paths);
  hang(false);  // The thread ends and needs the library, which stays loaded.
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->device, "cuda");
  EXPECT_EQ(found->devices, 1);
  EXPECT_EQ(found->device_memory_bytes, 0);
  EXPECT_TRUE(found->driver_hangs);
  EXPECT_EQ(found->memory_unknown, library + " has not answered within 20ms");
  EXPECT_EQ(found->device_model, "NVIDIA, its driver does not answer");
  EXPECT_FALSE(of(1).driver_hangs) << "a driver that answers again is queried again";
}

}  // namespace
}  // namespace titan::daemon
