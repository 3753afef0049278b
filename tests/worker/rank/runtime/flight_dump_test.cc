// Tests the file of a rank's last collectives: writing it must not make a failure worse.
#include "worker/rank/runtime/failure/flight_dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "common/io/storage/faulty_files.h"

namespace titan::runtime {
namespace {

using rank_protocol::kExitInternal;
using rank_protocol::kExitPeerLost;
using ::testing::EndsWith;
using ::testing::UnorderedElementsAre;
using Kind = storage::FileOperation::Kind;

const Failure kGone(kExitPeerLost, "PEER_LOST", "fsdp all_gather among ranks 0, 1: timed out");

std::shared_ptr<comm::FlightRecorder> recorder_of_one() {
  auto recorder = std::make_shared<comm::FlightRecorder>(8, comm::FlightRecorder::Waits::kCompletesOnWait);
  const at::Tensor tensor = at::zeros({2});
  recorder->begin(recorder->add_group("fsdp", {0, 1}), "all_reduce", tensor, tensor, std::chrono::seconds(1));
  return recorder;
}

class FlightFileTest : public ::testing::Test {
 protected:
  ~FlightFileTest() override { std::filesystem::remove_all(scratch_); }

  static std::string make_scratch() {
    std::string folder = ::testing::TempDir() + "flight_XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    return folder;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) all.push_back(entry.path().filename());
    return all;
  }

  const std::string scratch_ = make_scratch();
  const std::string folder_ = scratch_ + "/a/traces";
  const std::string prefix_ = folder_ + "/rank_";
};

TEST_F(FlightFileTest, NamesWhatItWrote) {
  FlightDump file({.recorder = recorder_of_one(), .prefix = prefix_, .rank = 3});
  EXPECT_STREQ(file.name_in(kGone).what(), kGone.what());
  file.write();
  EXPECT_TRUE(file.status().ok());
  EXPECT_THAT(names(), UnorderedElementsAre("rank_3"));
  const Failure lost = file.name_in(kGone);
  EXPECT_THAT(lost.what(), EndsWith("; until the next attempt this rank's last collectives are in " + prefix_ + "3"));
  EXPECT_EQ(lost.members().at("recording"), prefix_ + "3");
  EXPECT_EQ(lost.exit_code(), kExitPeerLost);

  const Failure own = file.name_in(Failure(kExitInternal, "INTERNAL", "a bug").with_details("a stack"));
  EXPECT_STREQ(own.what(), "a bug");
  EXPECT_EQ(own.members().at("recording"), prefix_ + "3");
  EXPECT_EQ(own.details(), "a stack");
}

// Files of ranks that wrote none this time are removed. Those of this attempt, and files with similar names, stay.
TEST_F(FlightFileTest, RemovesFilesOfEarlierAttempts) {
  std::filesystem::create_directories(folder_);
  for (const char* name : {"rank_1", "rank_12", "rank_", "rank_1.txt", "notes", "rank_2"}) {
    std::ofstream(folder_ + "/" + name) << "old";
  }
  std::filesystem::create_directory(folder_ + "/rank_7");
  for (const char* name : {"rank_1", "rank_12", "rank_", "rank_1.txt", "notes", "rank_7"}) {
    std::filesystem::last_write_time(folder_ + "/" + name,
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  }
  FlightDump file({.recorder = recorder_of_one(), .prefix = prefix_, .rank = 0});
  std::filesystem::last_write_time(folder_ + "/rank_2",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::minutes(1));
  file.write();
  EXPECT_THAT(names(), UnorderedElementsAre("rank_0", "rank_2", "rank_", "rank_1.txt", "notes", "rank_7"));
}

TEST_F(FlightFileTest, WithoutCollectivesThereIsNoFile) {
  FlightDump file({.recorder = std::make_shared<comm::FlightRecorder>(8, comm::FlightRecorder::Waits::kCompletesOnWait),
                   .prefix = prefix_});
  file.write();
  EXPECT_TRUE(file.status().ok());
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_TRUE(file.name_in(kGone).members().empty());
}

// Nothing is written to a folder that another attempt has taken over, or that no longer exists.
TEST_F(FlightFileTest, WithoutAdmissionNothingIsWritten) {
  FlightDump file({.recorder = recorder_of_one(), .prefix = prefix_, .admit = [] {
                     return absl::FailedPreconditionError("attempt 2 has the folder");
                   }});
  file.write();
  EXPECT_EQ(file.status().message(), "attempt 2 has the folder");
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

// A full disk leaves no partial file, and no report that a file exists.
TEST_F(FlightFileTest, FullDiskIsReportedAndLeavesNoFile) {
  for (const Kind kind : {Kind::kMakeFolders, Kind::kCreate, Kind::kAppend, Kind::kClose, Kind::kRename}) {
    storage::FaultyFiles files([kind](const storage::FileOperation& operation) -> storage::Fault {
      if (operation.kind != kind) return {};
      return {.status = absl::ResourceExhaustedError("no space"), .partial_bytes = 10};
    });
    FlightDump file({.recorder = recorder_of_one(), .prefix = prefix_}, files);
    file.write();
    EXPECT_EQ(file.status().code(), absl::StatusCode::kResourceExhausted) << name(kind);
    EXPECT_STREQ(file.name_in(kGone).what(), kGone.what());
    if (std::filesystem::exists(folder_)) {
      EXPECT_THAT(names(), UnorderedElementsAre()) << name(kind);
    }
  }
}

}  // namespace
}  // namespace titan::runtime
