// Tests the record of a rank's collectives, and that PyTorch's analyser receives the part that all ranks have in
// common.
#include "worker/rank/comm/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <latch>
#include <random>
#include <thread>

#include "common/rank_protocol/flight_tail.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/comm/recording_backend.h"

namespace titan::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using Waits = FlightRecorder::Waits;

std::vector<int64_t> numbers(const Flight& flight) {
  std::vector<int64_t> all;
  for (const Recording& recording : flight.recordings) all.push_back(recording.number);
  return all;
}

int64_t begin(FlightRecorder& recorder, int group, const char* operation = "all_reduce") {
  const at::Tensor tensor = at::zeros({2, 3});
  return recorder.begin(group, operation, tensor, tensor, milliseconds(100));
}

TEST(FlightRecorderTest, KeepsTheLastInOrder) {
  FlightRecorder recorder(4, Waits::kCompletesOnWait);
  const int group = recorder.add_group("fsdp", {0, 1});
  EXPECT_THAT(numbers(recorder.flight()), ElementsAre());
  for (int i = 0; i < 3; ++i) begin(recorder, group);
  EXPECT_THAT(numbers(recorder.flight()), ElementsAre(0, 1, 2));
  for (int i = 0; i < 3; ++i) begin(recorder, group);
  const Flight flight = recorder.flight();
  EXPECT_THAT(numbers(flight), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(flight.recordings.front().sequence, 3);
  EXPECT_EQ(flight.groups[group].last_issued, 6);
}

// A recording is scheduled, started and completed, each with its time. An operation whose entry was overwritten changes
// no other entry.
TEST(FlightRecorderTest, TracksEachOperationToCompletion) {
  FlightRecorder recorder(2, Waits::kCompletesOnWait);
  const int group = recorder.add_group("tp", {2, 3});
  const int64_t lost = begin(recorder, group);
  const int64_t one = begin(recorder, group, "_all_gather_base");
  EXPECT_EQ(recorder.flight().recordings.back().progress, CollectiveState::kScheduled);
  recorder.started(one);
  EXPECT_EQ(recorder.flight().recordings.back().progress, CollectiveState::kStarted);
  EXPECT_EQ(recorder.flight().recordings.back().completed_ns, 0);
  recorder.waited(one);
  const int64_t other = begin(recorder, group);
  recorder.started(lost);
  recorder.waited(lost);

  const Flight flight = recorder.flight();
  ASSERT_THAT(numbers(flight), ElementsAre(one, other));
  const Recording& done = flight.recordings.front();
  EXPECT_EQ(done.progress, CollectiveState::kCompleted);
  EXPECT_STREQ(done.operation, "_all_gather_base");
  EXPECT_LE(done.created_ns, done.started_ns);
  EXPECT_LE(done.started_ns, done.completed_ns);
  EXPECT_EQ(done.timeout, milliseconds(100));
  EXPECT_EQ(flight.recordings.back().progress, CollectiveState::kScheduled);
  EXPECT_EQ(flight.groups[group].last_issued, 3);
  EXPECT_EQ(flight.groups[group].last_completed, 2);
  EXPECT_EQ(flight.groups[group].description, "ranks 2, 3");
}

// wait() on a GPU's collective only queues later work after it, so the operation completes at a synchronization.
TEST(FlightRecorderTest, DeviceOperationsCompleteAtSynchronization) {
  FlightRecorder recorder(8, Waits::kCompletesOnSync);
  const int group = recorder.add_group("fsdp", {0, 1});
  const int64_t waited = begin(recorder, group);
  const int64_t in_flight = begin(recorder, group);
  for (const int64_t number : {waited, in_flight}) recorder.started(number);
  recorder.waited(waited);
  EXPECT_EQ(recorder.flight().recordings[0].progress, CollectiveState::kStarted);
  recorder.synchronized();
  EXPECT_EQ(recorder.flight().recordings[0].progress, CollectiveState::kCompleted);
  EXPECT_EQ(recorder.flight().recordings[1].progress, CollectiveState::kStarted);
}

// Two ranks issue different numbers of collectives per step. What they report starts at the same collective.
TEST(FlightRecorderTest, StartsAtTheSameStepOnAllRanks) {
  const auto after_steps = [](int extra) {
    FlightRecorder recorder(10, Waits::kCompletesOnWait);
    const int shared = recorder.add_group("world", {0, 1});
    const int own = recorder.add_group("tp", {0, 2});
    for (int step = 0; step < 5; ++step) {
      for (int i = 0; i < extra; ++i) begin(recorder, own);
      begin(recorder, shared);
      recorder.synchronized();
    }
    return recorder.flight();
  };
  const Flight few = after_steps(1);   // Two per step: five steps.
  const Flight many = after_steps(3);  // Four per step: two and a half steps.
  EXPECT_EQ(few.recordings.front().mark, 0);
  EXPECT_EQ(many.recordings.front().mark, 3);
  EXPECT_EQ(many.recordings.front().since_mark, 0);
  const auto shared_at = [](const Flight& flight, int64_t mark) {
    for (const Recording& recording : flight.recordings) {
      if (recording.group == 0 && recording.mark == mark) return recording.sequence;
    }
    return int64_t{-1};
  };
  EXPECT_EQ(shared_at(few, 3), 4);
  EXPECT_EQ(shared_at(many, 3), 4);

  // If a step is longer than the ring, all that is left of it is reported.
  FlightRecorder recorder(3, Waits::kCompletesOnWait);
  const int group = recorder.add_group("world", {0, 1});
  for (int i = 0; i < 7; ++i) begin(recorder, group);
  EXPECT_THAT(numbers(recorder.flight()), ElementsAre(4, 5, 6));
}

// Messages in one direction between two ranks have the same numbers on both sides, whatever is sent in other
// directions.
TEST(FlightRecorderTest, EachDirectionIsNumberedSeparately) {
  FlightRecorder recorder(8, Waits::kCompletesOnWait);
  const int group = recorder.add_group("pp", {1, 5, 9});
  const at::Tensor tensor = at::zeros({4});
  recorder.begin_message(group, "send", 1, 0, tensor, milliseconds(1));
  recorder.begin_message(group, "recv", 2, 1, tensor, milliseconds(1));
  recorder.begin_message(group, "send", 1, 0, tensor, milliseconds(1));
  const Flight flight = recorder.flight();
  ASSERT_EQ(flight.groups.size(), 3U);
  EXPECT_EQ(flight.groups[1].name, "pp 5->1");
  EXPECT_THAT(flight.groups[1].ranks, ElementsAre(1, 5));
  EXPECT_EQ(flight.groups[1].source, 1);
  EXPECT_EQ(flight.groups[1].destination, 0);
  EXPECT_EQ(flight.groups[2].name, "pp 9->5");
  EXPECT_EQ(flight.recordings[1].sequence, 1);
  EXPECT_EQ(flight.recordings[2].sequence, 2);
}

TEST(FlightRecorderTest, FoldsLeadingDims) {
  const RecordedTensor tensor(at::zeros({2, 3, 4, 5, 6}, at::kBFloat16));
  EXPECT_EQ(tensor.dims, 4);
  EXPECT_THAT(tensor.sizes, ElementsAre(6, 4, 5, 6));
  EXPECT_EQ(tensor.type, at::kBFloat16);
  EXPECT_EQ(RecordedTensor(at::Tensor()).dims, 0);
}

// Halves of a step, asynchronous tensor parallelism and the checkpointer issue operations from separate threads.
TEST(FlightRecorderTest, ConcurrentThreadsLoseNoRecordings) {
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;
  FlightRecorder recorder(kThreads * kEach, Waits::kCompletesOnWait);
  for (int i = 0; i < kThreads; ++i) recorder.add_group("group " + std::to_string(i), {0, 1});
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&recorder, i] {
      for (int n = 0; n < kEach; ++n) {
        const int64_t number = begin(recorder, i);
        recorder.started(number);
        if (n % 100 == 0) recorder.flight();
        recorder.waited(number);
      }
    });
  }
  threads.clear();
  const Flight flight = recorder.flight();
  ASSERT_EQ(flight.recordings.size(), static_cast<size_t>(kThreads * kEach));
  std::vector<int64_t> last(kThreads, 0);
  for (const Recording& recording : flight.recordings) {
    EXPECT_EQ(recording.progress, CollectiveState::kCompleted);
    EXPECT_EQ(recording.sequence, ++last[recording.group]);
  }
}

rank_protocol::FlightCall to_flight_call(const Recording& recording) {
  int64_t elements = 1;
  for (int i = 0; i < recording.input.dims; ++i) elements *= recording.input.sizes[i];
  using rank_protocol::CallState;
  const CallState open = recording.waited                                    ? CallState::kQueued
                         : recording.progress == CollectiveState::kScheduled ? CallState::kInside
                                                                             : CallState::kPosted;
  return {recording.group,
          recording.sequence,
          recording.operation,
          c10::toString(recording.input.type),
          elements,
          recording.mark,
          recording.since_mark,
          recording.created_ns,
          recording.progress == CollectiveState::kCompleted ? CallState::kCompleted : open};
}

// Records a random mix of a rank's operations; some entries are overwritten.
void record_at_random(FlightRecorder& recorder, int calls, std::mt19937& random) {
  const std::vector<at::Tensor> tensors = {at::zeros({2, 3}), at::zeros({2, 3, 1, 2, 2}, at::kBFloat16),
                                           at::zeros({}, at::kLong)};
  std::vector<int64_t> open;
  recorder.add_group("fsdp", {0, 2, 4});
  for (int i = 0; i < calls; ++i) {
    const at::Tensor& tensor = tensors[random() % tensors.size()];
    if (i == calls / 2) recorder.add_group("tp", {4, 5});  // Groups of messages are added at their first message.
    const int64_t number = random() % 3 == 0 ? recorder.begin_message(0, "send", 2, static_cast<int>(random() % 2),
                                                                      tensor, milliseconds(1))
                                             : recorder.begin(0, "_all_gather_base", tensor, tensor, milliseconds(1));
    if (random() % 8 != 0) recorder.started(number);
    open.push_back(number);
    while (!open.empty() && random() % 2 == 0) {
      const size_t which = random() % open.size();
      recorder.waited(open[which]);
      open.erase(open.begin() + static_cast<int64_t>(which));
    }
    if (random() % 20 == 0) recorder.synchronized();
  }
}

// The tail that others read of a hanging rank equals what the rank itself would report.
TEST(FlightRecorderTest, TailMatchesTheRecorder) {
  std::string folder = (std::filesystem::temp_directory_path() / "titan-recorder-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/rank-4.flight";
  std::mt19937 random(1);
  for (const Waits waits : {Waits::kCompletesOnWait, Waits::kCompletesOnSync}) {
    for (const int64_t entries : {3, 400, 5000}) {
      for (const int calls : {0, 1, 100, 700, 3000}) {
        FlightRecorder recorder(entries, waits);
        recorder.add_group("world", {0, 1, 2, 3, 4});
        recorder.attach(rank_protocol::FlightTail::create(path, 4).value());
        record_at_random(recorder, calls, random);
        const Flight flight = recorder.flight();
        const rank_protocol::RankFlight from_tail = rank_protocol::read_flight_tail(path).value();
        EXPECT_LE(flight.recordings.size(), static_cast<size_t>(entries));
        ASSERT_EQ(from_tail.calls.size(), static_cast<size_t>(std::min(calls, rank_protocol::FlightTail::kCalls)));
        ASSERT_EQ(from_tail.groups.size(), flight.groups.size());
        for (size_t i = 0; i < from_tail.groups.size(); ++i) {
          const RecordedGroup& group = flight.groups[i];
          EXPECT_EQ(from_tail.groups[i],
                    (rank_protocol::FlightGroup{group.name, rank_protocol::format_rank_list(group.ranks),
                                                rank_protocol::group_key(group.name, group.ranks), group.last_issued}));
        }
        for (size_t back = 1; back <= std::min(from_tail.calls.size(), flight.recordings.size()); ++back) {
          EXPECT_EQ(from_tail.calls[from_tail.calls.size() - back],
                    to_flight_call(flight.recordings[flight.recordings.size() - back]));
        }
      }
    }
  }
  std::filesystem::remove_all(folder);
}

// The tail shows whether the rank's program is in a call, or other ranks could continue without it.
TEST(FlightRecorderTest, TailShowsWhetherTheRankIsInACall) {
  std::string folder = (std::filesystem::temp_directory_path() / "titan-recorder-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  using rank_protocol::CallState;
  const auto state = [&] { return rank_protocol::read_flight_tail(folder + "/tail")->calls.back().state; };
  for (const Waits waits : {Waits::kCompletesOnWait, Waits::kCompletesOnSync}) {
    FlightRecorder recorder(10, waits);
    recorder.attach(rank_protocol::FlightTail::create(folder + "/tail", 0).value());
    const int group = recorder.add_group("fsdp", {0, 1});
    const int64_t number = recorder.begin(group, "all_reduce", at::zeros({2}), at::zeros({2}), milliseconds(1));
    EXPECT_EQ(state(), CallState::kInside) << "it is issued";
    recorder.started(number);
    EXPECT_EQ(state(), CallState::kPosted);
    recorder.waiting(number);
    EXPECT_EQ(state(), CallState::kInside);
    recorder.waited(number);
    EXPECT_EQ(state(), waits == Waits::kCompletesOnWait ? CallState::kCompleted : CallState::kQueued);
    recorder.synchronized();
    EXPECT_EQ(state(), CallState::kCompleted);
    recorder.waiting(number);
    EXPECT_EQ(state(), CallState::kCompleted) << "a second wait returns at once";
  }
  std::filesystem::remove_all(folder);
}

// If a call ends after its entry was overwritten, the tail still shows it as ended.
TEST(FlightRecorderTest, TailShowsOverwrittenCallsAsCompleted) {
  std::string folder = (std::filesystem::temp_directory_path() / "titan-recorder-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  for (const Waits waits : {Waits::kCompletesOnWait, Waits::kCompletesOnSync}) {
    FlightRecorder recorder(2, waits);
    recorder.attach(rank_protocol::FlightTail::create(folder + "/tail", 0).value());
    const int group = recorder.add_group("fsdp", {0, 1});
    std::vector<int64_t> open(9);
    for (int64_t& number : open) number = begin(recorder, group);
    for (const int64_t number : open) recorder.waited(number);
    recorder.synchronized();
    const rank_protocol::RankFlight from_tail = rank_protocol::read_flight_tail(folder + "/tail").value();
    EXPECT_EQ(from_tail.calls.size(), open.size());
    for (const rank_protocol::FlightCall& call : from_tail.calls)
      EXPECT_EQ(call.state, rank_protocol::CallState::kCompleted);
    EXPECT_EQ(recorder.flight().recordings.size(), 2U);
  }
  std::filesystem::remove_all(folder);
}

// A mesh's groups record their operations; if a rank is missing, the others' operations have started but not ended.
TEST(RecordingBackendTest, RecordsTheOperationsOfAMesh) {
  std::vector<Flight> flights(2);
  std::latch timed_out(2);  // The others would notice at once if a rank left earlier.
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::run_ranks({.dp_shard = 2}, 2, {}, [&](testing::ThreadRank& self) {
    FlightRecorder recorder(100, Waits::kCompletesOnWait);
    const DeviceMesh mesh(self.mesh->mesh(), {mesh::Axis::kFsdp}, *self.device, self.ledger,
                          {.rank = self.rank, .store = store, .timeout = milliseconds(300), .recorder = &recorder});
    const Group& group = mesh.group(mesh::Axis::kFsdp);
    group.all_gather(at::empty({4}), at::zeros({2})).wait();
    group.barrier();
    const at::Tensor message = at::zeros({3}, at::kDouble);
    (self.rank == 0 ? group.send(message, 1) : group.recv(message, 0)).wait();
    if (self.rank == 0) {
      EXPECT_THROW(group.all_reduce(at::zeros({1})).wait(), PeerLost);
    }
    flights[self.rank] = recorder.flight();
    timed_out.arrive_and_wait();
  });
  ASSERT_EQ(flights[0].recordings.size(), 4U);
  ASSERT_EQ(flights[1].recordings.size(), 3U);
  for (const Flight& flight : flights) {
    EXPECT_STREQ(flight.recordings[0].operation, "_all_gather_base");
    EXPECT_THAT(flight.recordings[0].input.sizes, ElementsAre(2, 0, 0, 0));
    EXPECT_THAT(flight.recordings[0].output.sizes, ElementsAre(4, 0, 0, 0));
    EXPECT_STREQ(flight.recordings[1].operation, "all_reduce_barrier");
    EXPECT_EQ(flight.recordings[2].input.type, at::kDouble);
    EXPECT_EQ(flight.groups[flight.recordings[2].group].name, "fsdp 0->1");
    for (int i = 0; i < 3; ++i) EXPECT_EQ(flight.recordings[i].progress, CollectiveState::kCompleted) << i;
  }
  EXPECT_STREQ(flights[0].recordings[2].operation, "send");
  EXPECT_STREQ(flights[1].recordings[2].operation, "recv");
  EXPECT_STREQ(flights[0].recordings[3].operation, "all_reduce");
  EXPECT_EQ(flights[0].recordings[3].progress, CollectiveState::kStarted);
  EXPECT_EQ(flights[0].recordings[3].timeout, milliseconds(300));
}

}  // namespace
}  // namespace titan::comm
