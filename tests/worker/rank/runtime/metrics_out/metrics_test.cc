#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/io/storage/faulty_files.h"
#include "common/io/storage/fence.h"
#include "nlohmann/json.hpp"
#include "worker/rank/runtime/metrics_out/console_line.h"
#include "worker/rank/runtime/metrics_out/device_peak.h"
#include "worker/rank/runtime/metrics_out/event_file.h"
#include "worker/rank/runtime/metrics_out/metrics_logger.h"

namespace titan::runtime {
namespace {

using storage::posix_files;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class FixedMemory : public MemoryMonitor {
 public:
  explicit FixedMemory(std::string name = "NVIDIA H100 80GB HBM3") : name_(std::move(name)) {}
  MemoryStats peak() override { return {1.5, 12.25, 2.125, 17.5, 0, 0}; }
  void reset_peak() override {}
  std::string device_name() const override { return name_; }

 private:
  std::string name_;
};

class MetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dump_ =
        storage::join_path(::testing::TempDir(), "metrics." + std::to_string(::getpid()) + "." +
                                                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(posix_files().remove_folder(dump_).ok());
    ASSERT_TRUE(storage::Fence(dump_).raise("job", 1).ok());
  }
  void TearDown() override { posix_files().remove_folder(dump_).IgnoreError(); }

  MetricsSetup setup() {
    MetricsSetup setup{.dump_folder = dump_, .job_uid = "job", .flops_per_token = 1e9, .clock = &clock_};
    setup.config.log_freq = 5;
    setup.config.disable_color_printing = true;
    setup.memory = std::make_unique<FixedMemory>();
    setup.device_peak = 989e12;
    setup.console = [this](const std::string& line) { console_.push_back(line); };
    return setup;
  }
  std::vector<nlohmann::json> lines() {
    std::ifstream file(dump_ + "/metrics.jsonl");
    std::vector<nlohmann::json> found;
    for (std::string line; std::getline(file, line);) found.push_back(nlohmann::json::parse(line));
    return found;
  }

  FakeClock clock_;
  std::string dump_;
  std::vector<std::string> console_;
};

// The expected lines come from torchtitan 0.2.2's own format strings.
TEST(ConsoleLineTest, MatchesTorchtitan) {
  const ConsoleFigures figures{.step = 1,
                               .loss = 8.12345678,
                               .grad_norm = 1.5,
                               .memory = {0, 0, 1.2345, 4.5},
                               .tokens_per_second = 1234567.5,
                               .tflops = 1234.567,
                               .mfu = 12.345};
  EXPECT_EQ(train_line(figures, false),
            "step:  1  loss:  8.12346  grad_norm:  1.5000  memory:  1.23GiB(4.50%)  tps: 1,234,568  tflops: 1,234.57  "
            "mfu: 12.35%");
  EXPECT_EQ(train_line({.step = 100, .loss = 3, .tokens_per_second = 12}, true),
            "\033[31mstep: 100  \033[32mloss:  3.00000  \033[38;2;180;60;0mgrad_norm:  0.0000  "
            "\033[38;2;54;234;195mmemory: -1.00GiB(-1.00%)  "
            "\033[34mtps: 12  \033[36mtflops: 0.00  \033[35mmfu: -\033[39m");
  EXPECT_EQ(validation_line({.step = 10, .loss = 3.14159, .memory = {0, 0, 12.5, 50}, .tokens_per_second = 999}, false),
            "validate step: 10  loss:  3.1416  memory: 12.50GiB(50.00%)  tps: 999");
  EXPECT_THAT(train_line({.loss = std::nan("")}, false), HasSubstr("loss:      nan"));
}

TEST(ConsoleLineTest, CommasSeparateThousands) {
  EXPECT_EQ(with_commas(0, 2), "0.00");
  EXPECT_EQ(with_commas(999, 0), "999");
  EXPECT_EQ(with_commas(1000, 0), "1,000");
  EXPECT_EQ(with_commas(-123456.789, 2), "-123,456.79");
  EXPECT_EQ(with_commas(-123, 0), "-123");
}

// Device names are those that drivers report. TFLOP/s are those of the makers' data sheets, dense (bfloat16 as
// torchtitan rounds it).
TEST(DevicePeakTest, MatchesTheDataSheetsForEveryType) {
  struct Row {
    const char* device;
    double half, single, quarter;
  };
  const Row rows[] = {
      {"NVIDIA A100-SXM4-80GB", 312, 19.5, 0},  {"NVIDIA A100-PCIE-40GB", 312, 19.5, 0},
      {"NVIDIA H100 80GB HBM3", 989, 67, 1979}, {"NVIDIA H100 PCIe", 756, 51, 1513},
      {"NVIDIA H100 NVL", 835, 60, 1670},       {"NVIDIA H200", 989, 67, 1979},
      {"NVIDIA H200 NVL", 835, 60, 1670},       {"NVIDIA H20", 148, 44, 296},
      {"NVIDIA B200", 2250, 75, 4500},          {"AMD Instinct MI300X", 1300, 163.4, 2614},
      {"NVIDIA L40S", 362, 91.6, 733},
  };
  const auto flops = [](double tera) { return tera > 0 ? std::optional(tera * 1e12) : std::nullopt; };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.device);
    EXPECT_EQ(device_peak(row.device, "bfloat16"), flops(row.half));
    EXPECT_EQ(device_peak(row.device, "float16"), flops(row.half));
    EXPECT_EQ(device_peak(row.device, "float32"), flops(row.single));
    EXPECT_EQ(device_peak(row.device, "float8"), flops(row.quarter));
    EXPECT_EQ(device_peak(row.device, "float64"), std::nullopt);
  }
}

// torchtitan would assume an A100's peak here, and report a wrong utilisation.
TEST(DevicePeakTest, UnknownDevicesHaveNone) {
  EXPECT_EQ(device_peak("AMD EPYC", "bfloat16"), std::nullopt);
  EXPECT_EQ(device_peak("NVIDIA GeForce RTX 4090", "bfloat16"), std::nullopt);
  EXPECT_EQ(device_peak("AMD Instinct MI250X", "float32"), std::nullopt);
}

TEST_F(MetricsTest, FiguresFollowTheirDefinitions) {
  auto setup = this->setup();
  setup.non_data_parallel_size = 2;
  auto logger = MetricsLogger::create(std::move(setup));
  ASSERT_TRUE(logger.ok());
  EXPECT_TRUE((*logger)->should_log(1));
  EXPECT_FALSE((*logger)->should_log(2));
  EXPECT_TRUE((*logger)->should_log(10));
  for (int i = 0; i < 4; ++i) (*logger)->add_batch(1000, absl::Milliseconds(10));
  clock_.advance(absl::Seconds(2));
  const auto named = (*logger)->log(5, {.global_avg_loss = 7.123456789012345,
                                        .global_max_loss = 8,
                                        .grad_norm = 0.1,
                                        .n_tokens_seen = 4000,
                                        .lr = 8e-4,
                                        .extra = {{"extra/x", 3}},
                                        .lists = {{"counts", {4, 0}}}});
  ASSERT_TRUE(named.ok()) << named.status();
  ASSERT_EQ(lines().size(), 1u);
  const nlohmann::json line = lines()[0];
  EXPECT_EQ(line["step"], 5);
  EXPECT_EQ(line["attempt"], 1);
  // One file may hold lines of several jobs and days.
  EXPECT_EQ(line["job"], "job");
  EXPECT_THAT(line["time"].get<std::string>(), MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z"));
  absl::Time time;
  ASSERT_TRUE(absl::ParseTime(absl::RFC3339_full, line["time"].get<std::string>(), &time, nullptr));
  EXPECT_LE(absl::AbsDuration(time - clock_.now()), absl::Milliseconds(1));
  EXPECT_EQ(line["loss_metrics/global_avg_loss"].get<double>(), 7.123456789012345) << "full precision";
  EXPECT_DOUBLE_EQ(line["throughput(tps)"], 1000);  // 4000 tokens / (2 s * 2)
  EXPECT_DOUBLE_EQ(line["tflops"], 1);
  EXPECT_DOUBLE_EQ(line["mfu(%)"], 100 * 1e12 / 989e12);
  EXPECT_DOUBLE_EQ(line["time_metrics/end_to_end(s)"], 0.4);
  EXPECT_DOUBLE_EQ(line["time_metrics/data_loading(s)"], 0.01);
  EXPECT_DOUBLE_EQ(line["time_metrics/data_loading(%)"], 2);
  EXPECT_EQ(line["memory/max_reserved(GiB)"], 2.125);
  EXPECT_TRUE(line["n_tokens_seen"].is_number_integer());
  EXPECT_EQ(line["n_tokens_seen"], 4000);
  EXPECT_EQ(line["lr"], 8e-4);
  EXPECT_EQ(line["extra/x"], 3);
  EXPECT_EQ(line["counts"], (std::vector<int64_t>{4, 0}));
  EXPECT_EQ(line.size(), 23u);
  EXPECT_EQ(console_, std::vector<std::string>{"step:  5  loss:  7.12346  grad_norm:  0.1000  memory:  2.12GiB(17.50%) "
                                               " tps: 1,000  tflops: 1.00  mfu: 0.10%"});

  // Readers use the last line of a step, so a validation's line repeats the step's training figures.
  (*logger)->add_validation_tokens(500);
  clock_.advance(absl::Seconds(1));
  ASSERT_TRUE((*logger)->log_validation(5, 6.5).ok());
  EXPECT_EQ(lines()[1]["validation_metrics/loss"], 6.5);
  EXPECT_EQ(lines()[1]["validation_metrics/throughput(tps)"], 250);
  EXPECT_EQ(lines()[1]["lr"], 8e-4);
}

// A line has each phase's time since the line before, per step. Time spent after a line (such as on a save) counts for
// the next line, and a validation has a separate window.
TEST_F(MetricsTest, PhasesAddUpToTheStep) {
  using rank_protocol::Phase;
  std::map<Phase, absl::Duration> spent = {{Phase::kBuild, absl::Seconds(9)}, {Phase::kData, absl::Seconds(7)}};
  const auto spend = [&](Phase phase, double seconds) {
    spent[phase] += absl::Seconds(seconds);
    clock_.advance(absl::Seconds(seconds));
  };
  auto setup = this->setup();
  setup.time_in_phase = [&spent](Phase phase) { return spent[phase]; };
  auto logger = MetricsLogger::create(std::move(setup));
  ASSERT_TRUE(logger.ok());
  spend(Phase::kData, 0.5);
  spend(Phase::kForward, 2);
  spend(Phase::kBackward, 4);
  spend(Phase::kOptimizer, 1);
  ASSERT_TRUE((*logger)->log(5, {}).ok());
  spend(Phase::kCheckpoint, 3);
  spend(Phase::kForward, 1);
  ASSERT_TRUE((*logger)->log(10, {}).ok());
  spend(Phase::kForward, 5);  // Spent by the validation.
  ASSERT_TRUE((*logger)->log_validation(10, 1).ok());
  spend(Phase::kForward, 2.5);
  ASSERT_TRUE((*logger)->log(15, {}).ok());

  const nlohmann::json first = lines()[0], second = lines()[1], last = lines()[3];
  EXPECT_DOUBLE_EQ(first["time_metrics/data(s)"], 0.1);
  EXPECT_DOUBLE_EQ(first["time_metrics/forward(s)"], 0.4);
  EXPECT_DOUBLE_EQ(first["time_metrics/backward(s)"], 0.8);
  EXPECT_DOUBLE_EQ(first["time_metrics/optimizer(s)"], 0.2);
  EXPECT_DOUBLE_EQ(first["time_metrics/checkpoint(s)"], 0);
  EXPECT_DOUBLE_EQ(first["time_metrics/end_to_end(s)"], 1.5);
  EXPECT_DOUBLE_EQ(second["time_metrics/checkpoint(s)"], 0.6);
  EXPECT_DOUBLE_EQ(second["time_metrics/forward(s)"], 0.2);
  EXPECT_DOUBLE_EQ(second["time_metrics/backward(s)"], 0);
  EXPECT_DOUBLE_EQ(last["time_metrics/forward(s)"], 0.5);
  EXPECT_DOUBLE_EQ(last["time_metrics/checkpoint(s)"], 0);
}

// If the device's peak is unknown, its share is not written anywhere.
TEST_F(MetricsTest, NoShareOfAnUnknownPeak) {
  for (const std::optional<double> stated : {std::optional<double>(), std::optional<double>(50e12)}) {
    auto setup = this->setup();
    setup.device_peak = stated;
    auto logger = MetricsLogger::create(std::move(setup));
    ASSERT_TRUE(logger.ok());
    (*logger)->add_batch(1000, absl::ZeroDuration());
    clock_.advance(absl::Seconds(1));
    ASSERT_TRUE((*logger)->log(5, {}).ok());
  }
  EXPECT_FALSE(lines()[0].contains("mfu(%)"));
  EXPECT_THAT(console_[0], ::testing::EndsWith("mfu: -"));
  EXPECT_DOUBLE_EQ(lines()[1]["mfu(%)"], 2);
  EXPECT_THAT(console_[1], ::testing::EndsWith("mfu: 2.00%"));
}

TEST_F(MetricsTest, OtherRanksPrintAndWriteNoFile) {
  auto setup = this->setup();
  setup.rank = 1;
  auto logger = MetricsLogger::create(std::move(setup));
  ASSERT_TRUE((*logger)->log(1, {}).ok());
  EXPECT_EQ(console_.size(), 1u);
  EXPECT_FALSE(posix_files().exists(dump_ + "/metrics.jsonl"));
}

TEST_F(MetricsTest, AFencedAttemptWritesNothing) {
  auto setup = this->setup();
  setup.config.enable_tensorboard = true;
  auto logger = MetricsLogger::create(std::move(setup));
  ASSERT_TRUE((*logger)->log(1, {}).ok());
  ASSERT_TRUE(storage::Fence(dump_).raise("job", 2).ok());
  EXPECT_TRUE(storage::is_fenced((*logger)->log(5, {}).status()));
  EXPECT_TRUE(storage::is_fenced((*logger)->log_pictures(5, "img", {{.name = "000", .png = "x"}})));
  EXPECT_FALSE(posix_files().exists(dump_ + "/img"));
  EXPECT_EQ(lines().size(), 1u);
  EXPECT_EQ(console_.size(), 1u);
}

// A killed writer leaves half a line. The lines of its successor are complete, and so is every line after the disk was
// full for a while.
TEST_F(MetricsTest, LinesStayComplete) {
  ASSERT_TRUE(storage::atomic_write(posix_files(), dump_ + "/metrics.jsonl", "{\"step\":1}\n{\"step\":2,\"att").ok());
  bool full = false;
  storage::FaultyFiles disk([&](const storage::FileOperation& operation) {
    const bool hit = full && operation.kind == storage::FileOperation::Kind::kAppend;
    return hit ? storage::Fault{absl::ResourceExhaustedError("No space left on device"), 10} : storage::Fault{};
  });
  auto setup = this->setup();
  setup.files = &disk;
  auto logger = MetricsLogger::create(std::move(setup));
  ASSERT_TRUE((*logger)->log(5, {}).ok());
  full = true;
  ASSERT_TRUE((*logger)->log(10, {}).ok()) << "a full disk costs the line, not the job";
  EXPECT_THAT((*logger)->take_warnings(), ::testing::ElementsAre(HasSubstr("No space left")));
  EXPECT_TRUE((*logger)->take_warnings().empty());
  full = false;
  ASSERT_TRUE((*logger)->log(15, {}).ok());
  std::vector<int> steps;
  for (const auto& line : lines()) steps.push_back(line["step"]);
  EXPECT_THAT(steps, ::testing::ElementsAre(1, 5, 15));
}

// Every picture gets a file. The line of the validation names the ones to show, and no other line does.
TEST_F(MetricsTest, PicturesAreFilesThatTheNextLineNames) {
  auto logger = MetricsLogger::create(setup());
  ASSERT_TRUE((*logger)->log(5, {}).ok());
  ASSERT_TRUE((*logger)
                  ->log_pictures(5, "img",
                                 {{.name = "000", .caption = "a cat", .png = "one", .shown = false},
                                  {.name = "grid", .caption = "all\xff", .png = "two"}})
                  .ok());
  ASSERT_TRUE((*logger)->log_validation(5, 0.5).ok());
  ASSERT_TRUE((*logger)->log(10, {}).ok());
  EXPECT_EQ(*storage::read_file(posix_files(), dump_ + "/img/step-5-000.png"), "one");
  EXPECT_EQ(*storage::read_file(posix_files(), dump_ + "/img/step-5-grid.png"), "two");
  const auto written = lines();
  ASSERT_EQ(written.size(), 3u);
  EXPECT_EQ(written[1]["pictures"],
            nlohmann::json::parse(R"([{"file": "img/step-5-grid.png", "caption": "all\ufffd"}])"));
  EXPECT_FALSE(written[0].contains("pictures") || written[2].contains("pictures"));
}

// A full disk costs the pictures, not the job.
TEST_F(MetricsTest, PicturesNeedNoSpace) {
  storage::FaultyFiles disk([&](const storage::FileOperation& operation) {
    const bool hit =
        operation.kind == storage::FileOperation::Kind::kAppend && operation.path.find("img") != std::string::npos;
    return hit ? storage::Fault{absl::ResourceExhaustedError("No space left on device"), 1} : storage::Fault{};
  });
  auto setup = this->setup();
  setup.files = &disk;
  auto logger = MetricsLogger::create(std::move(setup));
  ASSERT_TRUE((*logger)->log_pictures(5, "img", {{.name = "000", .png = "one"}}).ok());
  EXPECT_THAT((*logger)->take_warnings(), ::testing::ElementsAre(HasSubstr("No space left")));
  EXPECT_FALSE(posix_files().exists(dump_ + "/img/step-5-000.png"));
  ASSERT_TRUE((*logger)->log_validation(5, 0.5).ok());
  EXPECT_FALSE(lines()[0].contains("pictures"));
}

TEST_F(MetricsTest, NonFiniteFiguresStayJson) {
  auto logger = MetricsLogger::create(setup());
  ASSERT_TRUE((*logger)->log(1, {.global_avg_loss = std::nan(""), .grad_norm = INFINITY}).ok());
  EXPECT_TRUE(lines()[0]["loss_metrics/global_avg_loss"].is_null());
}

TEST_F(MetricsTest, CpuMemoryIsThisProcess) {
  auto memory = make_cpu_memory_monitor();
  const MemoryStats stats = memory->peak();
  EXPECT_GT(stats.max_reserved_gib, 0.001);
  EXPECT_GT(stats.max_reserved_percent, 0);
  EXPECT_LT(stats.max_reserved_percent, 100);
  EXPECT_EQ(stats.num_ooms, -1);
}

// Writes the folder that tensorboard_test.py reads.
TEST_F(MetricsTest, TensorBoardFolder) {
  const char* target = ::getenv("TITAN_TENSORBOARD_OUT");
  auto setup = this->setup();
  if (target != nullptr) setup.dump_folder = target;
  ASSERT_TRUE(storage::Fence(setup.dump_folder).raise("job", 1).ok());
  setup.config.enable_tensorboard = true;
  setup.config.save_for_all_ranks = target != nullptr;
  const std::string dump = setup.dump_folder;
  const std::string stamp = absl::FormatTime("%Y%m%d-%H%M", clock_.now(), absl::LocalTimeZone());
  auto logger = MetricsLogger::create(std::move(setup));
  for (int64_t step : {1, 5, 10}) {
    (*logger)->add_batch(1000, absl::ZeroDuration());
    clock_.advance(absl::Seconds(1));
    ASSERT_TRUE(
        (*logger)
            ->log(step, {.global_avg_loss = 10.0 / static_cast<double>(step), .n_tokens_seen = step * 1000, .lr = 1e-3})
            .ok());
  }
  // A PNG file of 1 x 1 pixels.
  const std::string png = absl::HexStringToBytes(
      "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
      "53de0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082");
  ASSERT_TRUE((*logger)->log_pictures(10, "img", {{.name = "grid", .png = png, .width = 1, .height = 1}}).ok());
  ASSERT_TRUE((*logger)->log_validation(10, 0.5).ok());
  EXPECT_TRUE(posix_files().is_folder(dump + "/tb/" + stamp + (target != nullptr ? "/rank_0" : "")));
}

// A rank dies after step 15, and the job resumes from step 8 in the same second, on a host whose name and clock sort
// first. The curve must be that of one training, which tensorboard_test.py checks if it runs this test.
TEST_F(MetricsTest, TensorBoardAfterARestart) {
  const char* target = ::getenv("TITAN_TENSORBOARD_OUT");
  const std::string dump = target != nullptr ? absl::StrCat(target, "/restarted") : dump_;
  for (const auto& [after, losses] : std::vector<std::pair<int64_t, std::map<int64_t, double>>>{
           {0, {{1, 10}, {5, 2}, {10, 77}, {15, 78}}}, {8, {{10, 1}, {15, 0.5}}}, {15, {{20, 0.25}}}}) {
    auto setup = this->setup();
    setup.dump_folder = dump;
    ASSERT_TRUE(storage::Fence(dump).raise("job", 1).ok());
    setup.config.enable_tensorboard = true;
    auto logger = MetricsLogger::create(std::move(setup));
    (*logger)->start_after(after);
    for (const auto& [step, loss] : losses) ASSERT_TRUE((*logger)->log(step, {.global_avg_loss = loss}).ok());
    if (after == 0) {
      ASSERT_TRUE((*logger)->log_validation(15, 79).ok());
    }
  }
  const std::string stamp = absl::FormatTime("%Y%m%d-%H%M", clock_.now(), absl::LocalTimeZone());
  const std::string folder = absl::StrCat(dump, "/tb/", stamp);
  const std::vector<std::string> names = posix_files().list(folder).value();
  ASSERT_EQ(names.size(), 3u);
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_THAT(names[i], StartsWith(absl::StrCat("events.out.tfevents.",
                                                  absl::ToUnixSeconds(clock_.now()) + static_cast<int64_t>(i), ".")));
  }
}

// Times are per step even if a line covers fewer steps than log_freq, as after a resume and after a validation.
TEST_F(MetricsTest, TimesArePerStepOfTheLine) {
  auto setup = this->setup();
  setup.time_in_phase = [this](rank_protocol::Phase) { return clock_.monotonic(); };
  auto logger = MetricsLogger::create(std::move(setup));
  ASSERT_TRUE(logger.ok());
  (*logger)->start_after(13);
  const auto train = [&](int steps, int64_t logged) {
    for (int i = 0; i < steps; ++i) (*logger)->add_batch(100, absl::Milliseconds(500));
    clock_.advance(absl::Seconds(2 * steps));
    return (*logger)->log(logged, {});
  };
  ASSERT_TRUE(train(2, 15).ok());
  for (int i = 0; i < 3; ++i) (*logger)->add_batch(100, absl::Milliseconds(500));
  clock_.advance(absl::Seconds(60));
  ASSERT_TRUE((*logger)->log_validation(18, 1).ok());
  ASSERT_TRUE(train(2, 20).ok());
  for (const size_t line : {0, 2}) {
    EXPECT_DOUBLE_EQ(lines()[line]["time_metrics/end_to_end(s)"], 2);
    EXPECT_DOUBLE_EQ(lines()[line]["time_metrics/forward(s)"], 2);
    EXPECT_DOUBLE_EQ(lines()[line]["time_metrics/data_loading(s)"], 0.5);
    EXPECT_DOUBLE_EQ(lines()[line]["time_metrics/data_loading(%)"], 25);
    EXPECT_DOUBLE_EQ(lines()[line]["throughput(tps)"], 50);
  }
}

// Without Python the training continues, and the job gets one warning.
TEST_F(MetricsTest, WithoutPythonThereIsOneWarning) {
  setenv("TITAN_RANK_PYTHON", "/nowhere/python3", /*overwrite=*/1);
  auto setup = this->setup();
  setup.config.enable_wandb = true;
  auto logger = MetricsLogger::create(std::move(setup));
  unsetenv("TITAN_RANK_PYTHON");
  ASSERT_TRUE(logger.ok());
  EXPECT_TRUE((*logger)->log(1, {}).ok());
  EXPECT_THAT((*logger)->take_warnings(),
              ElementsAre(AllOf(HasSubstr("start /nowhere/python3"), HasSubstr("pip install wandb"))));
  (*logger)->no_more();
  (*logger)->end(absl::Seconds(30));
  EXPECT_THAT((*logger)->take_warnings(), IsEmpty());
}

}  // namespace
}  // namespace titan::runtime
