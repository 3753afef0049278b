#include "common/rank_protocol/beacon.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"

namespace titan::rank_protocol {
namespace {

TEST(BeaconTest, ReaderSeesTheWriterAndTheWriterSeesCommands) {
  const TempFolder folder;
  const auto writer = Beacon::create(folder.file("b"), 3);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto reader = BeaconReader::open(folder.file("b"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  (*writer)->page().step = 41;
  (*writer)->enter(Phase::kForward);
  EXPECT_EQ((*reader)->page().step, 0);
  ASSERT_TRUE((*reader)->look().ok());
  EXPECT_EQ((*reader)->page().rank, 3);
  EXPECT_EQ((*reader)->page().pid, ::getpid());
  EXPECT_EQ((*reader)->page().step, 41);
  EXPECT_EQ((*reader)->page().phase, static_cast<uint32_t>(Phase::kForward));
  EXPECT_EQ((*reader)->page().counter, 1);
  EXPECT_GT((*reader)->page().phase_nanos[static_cast<int>(Phase::kInit)], 0);
  ASSERT_TRUE((*reader)->write((*reader)->page().command, static_cast<uint32_t>(BeaconCommand::kStopAndSave)).ok());
  EXPECT_EQ((*writer)->page().command, 2);
  EXPECT_EQ((*reader)->page().command, 2);
  EXPECT_EQ((*writer)->page().command_seen, 0) << "no neighbouring word changes";
}

// Every moment counts towards one phase, including the phase that still runs.
TEST(BeaconTest, PhaseTimesAddUpToElapsedTime) {
  const TempFolder folder;
  const auto beacon = Beacon::create(folder.file("b"), 0);
  ASSERT_TRUE(beacon.ok()) << beacon.status();
  (*beacon)->enter(Phase::kForward);
  const int64_t began = (*beacon)->page().phase_since;
  (*beacon)->enter(Phase::kBackward);
  (*beacon)->enter(Phase::kForward);
  EXPECT_EQ((*beacon)->time_in(Phase::kOptimizer), absl::ZeroDuration());
  const absl::Duration ended = (*beacon)->time_in(Phase::kForward);
  (*beacon)->enter(Phase::kExit);
  EXPECT_EQ((*beacon)->time_in(Phase::kForward) + (*beacon)->time_in(Phase::kBackward),
            absl::Nanoseconds((*beacon)->page().phase_since - began));
  EXPECT_LE(ended, (*beacon)->time_in(Phase::kForward));
}

// A rank that is killed at any moment leaves a readable page.
TEST(BeaconTest, OutlivesItsWriter) {
  const TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto beacon = Beacon::create(folder.file("b"), 0);
    (*beacon)->page().step = 7;
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  const auto reader = BeaconReader::open(folder.file("b"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->page().step, 7);
  EXPECT_EQ((*reader)->page().pid, child);
}

TEST(BeaconTest, RefusesOtherFiles) {
  const TempFolder folder;
  EXPECT_EQ(BeaconReader::open(folder.file("none")).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(folder.file("short")) << "x";
  EXPECT_EQ(BeaconReader::open(folder.file("short")).status().code(), absl::StatusCode::kDataLoss);
  std::ofstream(folder.file("other")) << std::string(4096, 'x');
  EXPECT_EQ(BeaconReader::open(folder.file("other")).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(Beacon::create(folder.file("b"), 0).ok());
  std::filesystem::create_symlink(folder.file("b"), folder.file("link"));
  EXPECT_FALSE(BeaconReader::open(folder.file("link")).ok());
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_FALSE(BeaconReader::open(folder.file("pipe")).ok());
}

// A rank is a user's program. Nothing that it does to its file can end the reader.
TEST(BeaconTest, ShrinkingFileDoesNotCrashTheReader) {
  const TempFolder folder;
  ASSERT_TRUE(Beacon::create(folder.file("b"), 0).ok());
  const auto reader = BeaconReader::open(folder.file("b"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const int size : {4095, 100, 0}) {
    ASSERT_EQ(::truncate(folder.file("b").c_str(), size), 0);
    EXPECT_EQ((*reader)->look().code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_EQ((*reader)->page().pid, ::getpid()) << "the last valid page";
  }
}

TEST(BeaconTest, EveryPhaseHasAName) {
  EXPECT_STREQ(name(Phase::kInit), "init");
  EXPECT_STREQ(name(Phase::kValidate), "validate");
  EXPECT_STREQ(name(Phase::kExit), "exit");
  EXPECT_STREQ(name(static_cast<Phase>(99)), "unknown");
}

}  // namespace
}  // namespace titan::rank_protocol
