#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "nlohmann/json.hpp"
#include "tests/common/rank_protocol/temp_folder.h"
#include "worker/rank/device/trace_scope.h"
#include "worker/rank/runtime/profiling/trace_file.h"
#include "worker/rank/runtime/profiling/tracer.h"

namespace titan::runtime {
namespace {

using rank_protocol::TraceState;

config::ProfilingSection every(int freq, int warmup, int active) {
  config::ProfilingSection config;
  config.enable_profiling = true;
  config.profile_freq = freq;
  config.profiler_warmup = warmup;
  config.profiler_active = active;
  return config;
}

// Returns one letter per step: nothing, warm-up, record, save.
std::string drawn(const config::ProfilingSection& config, int64_t steps) {
  std::string text;
  for (int64_t step = 1; step <= steps; ++step) {
    const ProfilerAction work = profiler_action(config, step);
    EXPECT_FALSE(work.warms_up && work.records);
    EXPECT_TRUE(work.records || !work.saves);
    text += work.saves ? 's' : work.records ? 'r' : work.warms_up ? 'w' : '.';
  }
  return text;
}

TEST(TraceScheduleTest, RecordsTheLastStepsOfARound) {
  EXPECT_EQ(drawn(every(10, 3, 1), 23), "......wwws......wwws...");
  EXPECT_EQ(drawn(every(6, 2, 3), 13), ".wwrrs.wwrrs.");
  EXPECT_EQ(drawn(every(4, 2, 2), 9), "wwrswwrsw");
  EXPECT_EQ(drawn(every(3, 0, 1), 7), "..s..s.");
  EXPECT_EQ(drawn(every(1, 0, 1), 3), "sss");
  EXPECT_EQ(drawn(config::ProfilingSection(), 20), std::string(20, '.'));
}

std::vector<std::string> names_in(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  std::vector<std::string> names;
  for (const auto& event : trace["traceEvents"]) names.push_back(event.value("name", ""));
  return names;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

TEST(TracerTest, HoldsTheStepsOfOneRoundAndTheirHelpers) {
  const rank_protocol::TempFolder folder;
  Tracer tracer(every(3, 1, 2), folder.path() + "/traces", {.rank = 5}, /*records=*/true);
  std::string written;
  for (int64_t step = 1; step <= 3; ++step) {
    tracer.begin_step(step);
    {
      const device::TraceScope scope([&] { return "step " + std::to_string(step); });
      std::thread([state = at::ThreadLocalState()] {
        const at::ThreadLocalStateGuard for_the_rank(state);
        const device::TraceScope help([] { return "a helper"; });
      }).join();
      std::thread([] { const device::TraceScope other([] { return "somebody else"; }); }).join();
    }
    const auto saved = tracer.end_step(step);
    ASSERT_TRUE(saved.ok()) << saved.status().message();
    EXPECT_EQ(saved->has_value(), step == 3);
    if (*saved) written = (*saved)->path;
  }
  EXPECT_EQ(written, folder.path() + "/traces/iteration_3/rank5_trace.json");
  const std::vector<std::string> names = names_in(written);
  EXPECT_FALSE(has(names, "step 1"));
  EXPECT_TRUE(has(names, "step 2"));
  EXPECT_TRUE(has(names, "step 3"));
  EXPECT_TRUE(has(names, "a helper"));
  EXPECT_FALSE(has(names, "somebody else"));
}

// Work of other threads, and collectives in flight, come from the rank's own recordings and have separate rows.
TEST(TracerTest, HoldsOtherThreadsAndCollectives) {
  const rank_protocol::TempFolder folder;
  const auto spans = std::make_shared<trace::SpanRecorder>();
  Tracer tracer(every(1, 0, 1), folder.path(), {.rank = 1, .world = 4}, /*records=*/true, std::nullopt, spans);
  tracer.begin_step(1);
  std::thread([&] { const trace::ThreadSpanScope work(spans.get(), "checkpoint writer", "write shard"); }).join();
  const int64_t now = trace::now_ns();
  const auto transfer = [&](int64_t begin, int64_t end) {
    spans->add(
        {"all_gather", "fsdp", 2, 4096, now + begin, now + begin + 1000, now + end - 2000, now + end, now + end});
  };
  transfer(0, 50000);
  transfer(10000, 40000);  // While the first is in flight.
  transfer(60000, 80000);
  const auto saved = tracer.end_step(1);
  ASSERT_TRUE(saved.ok() && saved->has_value());

  std::ifstream file((*saved)->path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  EXPECT_EQ(trace["distributedInfo"], (nlohmann::json{{"backend", "gloo"}, {"rank", 1}, {"world_size", 4}}));
  std::map<int64_t, std::string> rows;
  std::map<std::string, std::vector<nlohmann::json>> events;  // By row.
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") rows[event["tid"]] = event["args"]["name"];
  }
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["tid"].is_number()) events[rows[event["tid"]]].push_back(event);
  }
  ASSERT_EQ(events["checkpoint writer"].size(), 1U);
  EXPECT_EQ(events["checkpoint writer"][0]["name"], "write shard");
  ASSERT_EQ(events["collectives fsdp"].size(), 2U);
  ASSERT_EQ(events["collectives fsdp (2)"].size(), 1U);
  const nlohmann::json& first = events["collectives fsdp"][0];
  EXPECT_EQ(first["name"], "gloo:all_gather");
  EXPECT_NEAR(first["dur"], 50.0, 0.01);
  const double base_us = trace["baseTimeNanoseconds"].get<double>() / 1e3;
  EXPECT_NEAR(first["ts"].get<double>() + base_us, static_cast<double>(now) / 1e3, 1.0);
  const nlohmann::json& args = first["args"];
  EXPECT_EQ(args["axis"], "fsdp");
  EXPECT_EQ(args["bytes"], 4096);
  EXPECT_EQ(args["issuing us"], 1.0);
  EXPECT_EQ(args["issued to wait us"], 47.0);
  EXPECT_EQ(args["waiting us"], 2.0);
}

// A file that is not a trace of LibTorch is not changed.
TEST(TraceFileTest, RefusesFilesThatAreNotTraces) {
  const rank_protocol::TempFolder folder;
  const std::string path = folder.path() + "/trace.json";
  for (const char* text :
       {"", "{}", R"({"baseTimeNanoseconds": 5, "traceEvents": []})", R"({"baseTimeNanoseconds": x,)"}) {
    std::ofstream(path) << text;
    EXPECT_TRUE(absl::IsUnavailable(add_to_trace(path, {}, {}))) << text;
    std::ifstream file(path);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
  }
  EXPECT_TRUE(absl::IsUnavailable(add_to_trace(folder.path() + "/none", {}, {})));
}

TEST(TracerTest, EndingDuringARoundSavesItsSteps) {
  const rank_protocol::TempFolder folder;
  Tracer tracer(every(4, 1, 3), folder.path(), {.rank = 0}, /*records=*/true);
  tracer.begin_step(2);
  {
    const device::TraceScope scope([] { return "step 2"; });
  }
  ASSERT_FALSE(tracer.end_step(2)->has_value());
  const auto saved = tracer.finish(2);
  ASSERT_TRUE(saved.ok() && saved->has_value());
  EXPECT_TRUE(has(names_in((*saved)->path), "step 2"));
  EXPECT_FALSE(tracer.finish(2)->has_value());
}

TEST(TracerTest, EndingDuringWarmupFreesTheProfiler) {
  const rank_protocol::TempFolder folder;
  for (int attempt = 0; attempt < 2; ++attempt) {
    Tracer tracer(every(3, 1, 1), folder.path(), {.rank = 0}, /*records=*/true);
    tracer.begin_step(2);
    EXPECT_FALSE(tracer.end_step(2)->has_value());
    EXPECT_FALSE(tracer.finish(2)->has_value());
  }
  Tracer tracer(every(1, 0, 1), folder.path(), {.rank = 0}, /*records=*/true);
  tracer.begin_step(1);
  EXPECT_TRUE(tracer.end_step(1)->has_value());
}

TEST(TracerTest, OtherRanksRecordNothing) {
  const rank_protocol::TempFolder folder;
  Tracer tracer(every(1, 0, 1), folder.path() + "/traces", {.rank = 1}, /*records=*/false);
  tracer.begin_step(1);
  EXPECT_FALSE(tracer.end_step(1)->has_value());
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/traces"));
}

TEST(TracerTest, AFolderThatCannotBeMadeIsAnError) {
  const rank_protocol::TempFolder folder;
  std::ofstream(folder.path() + "/traces") << "a file";
  Tracer tracer(every(1, 0, 1), folder.path() + "/traces", {.rank = 0}, /*records=*/true);
  tracer.begin_step(1);
  EXPECT_FALSE(tracer.end_step(1).ok());
  tracer.begin_step(2);  // The profiler is free again.
  EXPECT_FALSE(tracer.end_step(2).ok());
}

// Tests traces that are requested from a rank while it trains. The test plays the daemon's part on the shared page.
class RequestedTraceTest : public ::testing::Test {
 protected:
  Tracer tracer(const config::ProfilingSection& config = {}) {
    return {config,
            folder_.path() + "/traces",
            {.rank = 3},
            /*records=*/true,
            TraceRequestReader(words_, folder_.path(), 3)};
  }
  void order(uint64_t request, int64_t first_step, int64_t steps) {
    words_.first_step = first_step;
    words_.steps = steps;
    words_.request = request;
  }
  TraceState state() const { return static_cast<TraceState>(words_.state.load()); }
  // Runs a step; returns what was saved after it.
  static std::optional<Tracer::Saved> run(Tracer& tracer, int64_t step) {
    tracer.begin_step(step);
    {
      const device::TraceScope scope([&] { return "step " + std::to_string(step); });
    }
    auto saved = tracer.end_step(step);
    EXPECT_TRUE(saved.ok()) << saved.status().message();
    return saved.ok() ? *std::move(saved) : std::nullopt;
  }

  const rank_protocol::TempFolder folder_;
  rank_protocol::TraceRequest words_{};
};

TEST_F(RequestedTraceTest, HoldsTheRequestedSteps) {
  Tracer tracer = this->tracer();
  EXPECT_EQ(words_.takes_requests, 1);
  EXPECT_FALSE(run(tracer, 1));
  order(0xab, 4, 2);
  EXPECT_FALSE(run(tracer, 2));
  EXPECT_EQ(words_.taken, 0) << "its warm-up is step 3";
  EXPECT_FALSE(run(tracer, 3));
  EXPECT_EQ(words_.taken, 0xab);
  EXPECT_EQ(state(), TraceState::kWaiting);
  EXPECT_FALSE(run(tracer, 4));
  EXPECT_EQ(state(), TraceState::kRecording);
  const auto saved = run(tracer, 5);
  ASSERT_TRUE(saved);
  EXPECT_EQ(state(), TraceState::kWritten);
  EXPECT_EQ(saved->path, folder_.path() + "/rank-3.trace-00000000000000ab.json");
  EXPECT_EQ(saved->bytes, std::filesystem::file_size(saved->path));
  EXPECT_TRUE(saved->on_request);
  EXPECT_EQ(words_.recorded_first, 4);
  EXPECT_EQ(words_.recorded_last, 5);
  const std::vector<std::string> names = names_in(saved->path);
  EXPECT_FALSE(has(names, "step 3"));
  EXPECT_TRUE(has(names, "step 4"));
  EXPECT_TRUE(has(names, "step 5"));
  EXPECT_FALSE(run(tracer, 6)) << "once";
}

TEST_F(RequestedTraceTest, LateRequestGetsTheNextSteps) {
  Tracer tracer = this->tracer();
  order(1, 2, 1);
  EXPECT_FALSE(run(tracer, 7));
  ASSERT_TRUE(run(tracer, 8));
  EXPECT_EQ(words_.recorded_first, 8);
  EXPECT_EQ(words_.recorded_last, 8);
}

TEST_F(RequestedTraceTest, EndingEarlySavesTheRecordedSteps) {
  Tracer tracer = this->tracer();
  order(1, 2, 10);
  for (const int64_t step : {1, 2, 3}) EXPECT_FALSE(run(tracer, step));
  const auto saved = tracer.finish(3);
  ASSERT_TRUE(saved.ok() && saved->has_value());
  EXPECT_EQ(words_.recorded_last, 3);
  EXPECT_EQ(state(), TraceState::kWritten);
}

// A round that has begun to record continues to its end; otherwise a request takes precedence.
TEST_F(RequestedTraceTest, SharesTheProfilerWithTheSchedule) {
  Tracer tracer = this->tracer(every(5, 1, 2));  // Records 4, 5; 9, 10; 14, 15.
  for (const int64_t step : {1, 2, 3, 4}) EXPECT_FALSE(run(tracer, step));
  order(1, 5, 2);
  const auto scheduled = run(tracer, 5);
  ASSERT_TRUE(scheduled);
  EXPECT_FALSE(scheduled->on_request);
  EXPECT_EQ(scheduled->path, folder_.path() + "/traces/iteration_5/rank3_trace.json");
  EXPECT_EQ(words_.taken, 0);
  EXPECT_FALSE(run(tracer, 6));
  EXPECT_FALSE(run(tracer, 7));
  const auto requested = run(tracer, 8);
  ASSERT_TRUE(requested && requested->on_request);
  EXPECT_EQ(requested->first_step, 7);

  order(2, 9, 1);
  EXPECT_FALSE(run(tracer, 9)) << "its warm-up: the schedule's round loses steps 9 and 10";
  ASSERT_TRUE(run(tracer, 10));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/traces/iteration_10"));
  for (const int64_t step : {11, 12, 13, 14}) EXPECT_FALSE(run(tracer, step));
  EXPECT_TRUE(run(tracer, 15)) << "the next round is complete again";
}

TEST_F(RequestedTraceTest, ReportsAFileThatCannotBeWritten) {
  Tracer tracer{{},
                folder_.path(),
                {.rank = 3},
                /*records=*/true,
                TraceRequestReader(words_, folder_.path() + "/nowhere/file", 3)};
  std::ofstream(folder_.path() + "/nowhere") << "a file";
  order(1, 2, 1);
  EXPECT_FALSE(run(tracer, 1));
  tracer.begin_step(2);
  EXPECT_FALSE(tracer.end_step(2).ok());
  EXPECT_EQ(state(), TraceState::kFailed);
}

// The text is not built unless something records.
TEST(TraceScopeTest, BuildsNoTextUnlessRecording) {
  bool built = false;
  {
    const device::TraceScope scope([&] {
      built = true;
      return "never";
    });
  }
  EXPECT_FALSE(built);
}

}  // namespace
}  // namespace titan::runtime
