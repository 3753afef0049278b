// Traces of running ranks through the API; the test plays the nodes with the ranks.

#include <future>
#include <map>
#include <thread>

#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

using Answer = std::function<v1::TraceData(const v1::ReadTrace&)>;

// Plays a node with one device that runs the attempts it gets, and answers trace requests with `answer`.
class ScriptedNode {
 public:
  ScriptedNode(v1::WorkerService::Stub& workers, const std::string& name, Answer answer) : answer_(std::move(answer)) {
    rpc::set_deadline(context_, absl::Seconds(30));
    stream_ = workers.Session(&context_);
    v1::WorkerMessage hello;
    hello.mutable_register_()->set_node(name);
    hello.mutable_register_()->set_instance(name);
    hello.mutable_register_()->set_address("127.0.0.1");
    hello.mutable_register_()->mutable_resources()->set_device("cpu");
    hello.mutable_register_()->mutable_resources()->set_devices(1);
    hello.mutable_register_()->mutable_resources()->set_cpu_cores(2);
    stream_->Write(hello);
    thread_ = std::thread([this] { serve(); });
  }
  ~ScriptedNode() {
    context_.TryCancel();
    thread_.join();
    (void)stream_->Finish();
  }

  // Can be called from any thread.
  void write(const v1::WorkerMessage& message) {
    sync::Lock lock(mutex_);
    stream_->Write(message);
  }
  void beat() {
    v1::WorkerMessage message;
    message.mutable_beat()->set_sequence(1);
    write(message);
  }
  void report(v1::AttemptReport::Phase phase, int killed_rank = -1) {
    v1::WorkerMessage message;
    {
      sync::Lock lock(mutex_);
      *message.mutable_attempt()->mutable_id() = id_;
    }
    message.mutable_attempt()->set_phase(phase);
    message.mutable_attempt()->set_store_port(1234);
    if (killed_rank >= 0) {
      v1::RankExitReport* exit = message.mutable_attempt()->add_exits();
      exit->set_rank(killed_rank);
      exit->set_exit_code(-1);
      exit->set_signal(9);
    }
    write(message);
  }
  std::vector<v1::ReadTrace> reads() {
    sync::Lock lock(mutex_);
    return reads_;
  }

 private:
  void serve() {
    v1::ControllerMessage message;
    while (stream_->Read(&message)) {
      if (message.has_prepare()) {
        {
          sync::Lock lock(mutex_);
          id_ = message.prepare().id();
        }
        leads_ = message.prepare().leader();
        report(v1::AttemptReport::PREPARED);
      } else if (message.has_start()) {
        report(v1::AttemptReport::STARTED);
        if (leads_) first_step();
      } else if (message.has_read_trace() && answer_ != nullptr) {
        {
          sync::Lock lock(mutex_);
          reads_.push_back(message.read_trace());
        }
        v1::WorkerMessage reply;
        *reply.mutable_trace() = answer_(message.read_trace());
        reply.mutable_trace()->set_request(message.read_trace().request());
        write(reply);
      }
    }
  }
  void first_step() {
    v1::WorkerMessage events;
    {
      sync::Lock lock(mutex_);
      *events.mutable_events()->mutable_id() = id_;
    }
    auto* line = events.mutable_events()->add_events();
    line->set_sequence(1);
    line->set_json(R"({"seq":1,"kind":"step","step":1,"metrics":{}})");
    write(events);
  }

  const Answer answer_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::ControllerMessage>> stream_;
  std::thread thread_;
  bool leads_ = false;
  sync::Mutex mutex_;
  v1::AttemptId id_ TITAN_GUARDED_BY(mutex_);
  std::vector<v1::ReadTrace> reads_ TITAN_GUARDED_BY(mutex_);
};

v1::TraceData at_step(int64_t step, v1::TraceData::State state = v1::TraceData::STATE_UNSPECIFIED) {
  v1::TraceData answer;
  answer.set_state(state);
  answer.set_step(step);
  answer.set_step_nanoseconds(1'000'000'000);
  answer.set_phase("forward");
  return answer;
}

v1::TraceData in_trace(const v1::ReadTrace& read, int64_t step, v1::TraceData::State state) {
  v1::TraceData answer = at_step(step, state);
  answer.set_first_step(read.first_step());
  answer.set_last_step(read.first_step() + read.steps() - 1);
  return answer;
}

v1::TraceData written(const v1::ReadTrace& read, const std::string& text, size_t piece) {
  v1::TraceData answer = in_trace(read, read.first_step() + read.steps(), v1::TraceData::WRITTEN);
  answer.set_total_bytes(static_cast<int64_t>(text.size()));
  answer.set_offset(read.offset());
  answer.set_data(text.substr(static_cast<size_t>(read.offset()), piece));
  return answer;
}

v1::TraceData refusal(const std::string& reason) {
  v1::TraceData answer = at_step(3);
  answer.set_error_reason(reason);
  answer.set_error_message("because of " + reason);
  return answer;
}

class TraceStreamTest : public ServiceCase {
 protected:
  // Runs a job with one rank per node.
  void train(const std::string& id, int ranks) {
    config::JobConfig config;
    config.job.dump_folder = "/dump/" + id;
    config.scheduling.job_id = id;
    config.resources.device = "cpu";
    config.resources.ranks = ranks;
    config.resources.ranks_per_node = 1;
    v1::CreateJobRequest request;
    request.mutable_spec()->set_config_json(config::to_json(config).dump());
    v1::Job created;
    ASSERT_TRUE(create(request, &created).ok());
    if (nodes_of_job_ == 0) return;
    v1::WatchJobsRequest watch;
    watch.set_name(id);
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(20));
    auto changes = jobs_->WatchJobs(&context, watch);
    v1::JobChange change;
    while (changes->Read(&change) && change.job().state() != v1::Job::RUNNING) continue;
    ASSERT_EQ(change.job().state(), v1::Job::RUNNING);
    context.TryCancel();
    (void)changes->Finish();
  }
  static v1::ProfileJobRequest request(const std::string& id, std::vector<int> ranks, int steps = 2) {
    v1::ProfileJobRequest request;
    request.set_name(id);
    request.set_request_id("5b0c8f3e-0000-4000-8000-000000000003");
    request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
    request.set_steps(steps);
    return request;
  }
  absl::Status profile(const v1::ProfileJobRequest& request, std::vector<v1::TraceChunk>* chunks = nullptr) {
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(20));
    auto stream = jobs_->ProfileJob(&context, request);
    v1::TraceChunk chunk;
    while (stream->Read(&chunk)) {
      if (chunks != nullptr) chunks->push_back(chunk);
    }
    return rpc::from_grpc(stream->Finish());
  }
  std::vector<std::string> messages_of(const std::string& job, const std::string& reason) {
    v1::ListEventsRequest request;
    request.set_job(job);
    grpc::ClientContext context;
    auto stream = jobs_->ListEvents(&context, request);
    v1::Event event;
    std::vector<std::string> found;
    while (stream->Read(&event)) {
      if (event.reason() == reason) found.push_back(event.message());
    }
    EXPECT_TRUE(stream->Finish().ok());
    return found;
  }

  int nodes_of_job_ = 1;
};

// All ranks are checked first, then all get the same steps; each trace arrives complete, in pieces.
TEST_F(TraceStreamTest, CollectsTracesOfSeveralNodes) {
  const auto node = [](int64_t step, const std::string& text) {
    return [step, text, polls = 0](const v1::ReadTrace& read) mutable {
      if (read.steps() == 0) return at_step(step);
      if (++polls == 1) return in_trace(read, step, v1::TraceData::WAITING);
      if (polls == 2) return in_trace(read, step + 3, v1::TraceData::RECORDING);
      return written(read, text, 4);
    };
  };
  ScriptedNode first(*workers_, "n1", node(10, "the first trace"));
  ScriptedNode second(*workers_, "n2", node(11, "the second"));
  train("a", 2);
  std::vector<v1::TraceChunk> chunks;
  const absl::Status status = profile(request("a", {1, 0, 1}), &chunks);
  ASSERT_TRUE(status.ok()) << status;

  std::map<int, std::string> texts;
  std::map<int, std::vector<v1::TraceChunk::State>> states;
  for (const v1::TraceChunk& chunk : chunks) {
    EXPECT_EQ(chunk.attempt(), 1);
    EXPECT_EQ(chunk.first_step(), 15)
        << "rank 1 is in step 12, the request takes one step, and the profiler warms up in the next";
    EXPECT_EQ(chunk.last_step(), 16);
    EXPECT_EQ(chunk.offset(), chunk.data().empty() ? 0 : texts[chunk.rank()].size());
    texts[chunk.rank()] += chunk.data();
    if (states[chunk.rank()].empty() || states[chunk.rank()].back() != chunk.state()) {
      states[chunk.rank()].push_back(chunk.state());
    }
  }
  const bool first_leads = texts[0] == "the first trace";
  EXPECT_EQ(texts[first_leads ? 0 : 1], "the first trace");
  EXPECT_EQ(texts[first_leads ? 1 : 0], "the second");
  for (const int rank : {0, 1}) {
    EXPECT_THAT(states[rank],
                ::testing::ElementsAre(v1::TraceChunk::WAITING, v1::TraceChunk::RECORDING, v1::TraceChunk::WRITTEN));
  }
  EXPECT_EQ(first.reads()[0].steps(), 0);
  EXPECT_THAT(messages_of("a", "TraceRequested"), ::testing::ElementsAre("2 steps of ranks 0, 1"));

  // A call that resumes gets the same trace and is not a new request.
  v1::ProfileJobRequest again = request("a", {0});
  again.set_attempt(1);
  const uint64_t number = first.reads()[0].trace();
  const size_t before = first.reads().size() + second.reads().size();
  EXPECT_TRUE(profile(again).ok());
  EXPECT_GT(first.reads().size() + second.reads().size(), before);
  for (ScriptedNode* node : {&first, &second}) {
    for (const v1::ReadTrace& read : node->reads()) EXPECT_EQ(read.trace(), number);
  }
  EXPECT_EQ(messages_of("a", "TraceRequested").size(), 1);
}

// If one rank cannot record, no rank starts.
TEST_F(TraceStreamTest, BusyRankFailsTheRequestBeforeAnyRecords) {
  ScriptedNode first(*workers_, "n1", [](const v1::ReadTrace&) { return at_step(3); });
  ScriptedNode second(*workers_, "n2", [](const v1::ReadTrace&) { return refusal("TRACE_IN_PROGRESS"); });
  train("a", 2);
  const absl::Status status = profile(request("a", {0, 1}));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rpc::reason(status), "TRACE_IN_PROGRESS");
  for (const v1::ReadTrace& read : first.reads()) EXPECT_EQ(read.steps(), 0);
}

TEST_F(TraceStreamTest, RankWithoutProgressIsNamed) {
  ScriptedNode node(*workers_, "n1", [](const v1::ReadTrace& read) {
    return read.steps() == 0 ? at_step(3) : in_trace(read, 3, v1::TraceData::WAITING);
  });
  train("a", 1);
  v1::ProfileJobRequest impatient = request("a", {0});
  impatient.set_patience_milliseconds(300);
  const absl::Status status = profile(impatient);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(rpc::reason(status), "RANK_DOES_NOT_MOVE");
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("rank 0 on node n1 has shown no progress for 300ms after step 3: it is in phase "
                                   "forward"));
}

// The rank ends first and its attempt a moment later: the attempt's end is reported.
TEST_F(TraceStreamTest, AttemptThatEndsDuringATraceIsNamed) {
  std::atomic<bool> dead = false;
  std::promise<void> waiting;
  ScriptedNode node(*workers_, "n1", [&, notified = false](const v1::ReadTrace& read) mutable {
    if (dead) return refusal("RANK_GONE");
    if (read.steps() == 0) return at_step(3);
    if (!std::exchange(notified, true)) waiting.set_value();
    return in_trace(read, 3, v1::TraceData::WAITING);
  });
  train("a", 1);
  auto result = std::async(std::launch::async, [&] { return profile(request("a", {0})); });
  waiting.get_future().wait();
  dead = true;
  node.report(v1::AttemptReport::ENDED, /*killed_rank=*/0);
  const absl::Status status = result.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rpc::reason(status), "ATTEMPT_ENDED");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("attempt 1 ended (RANK_KILLED) before the trace of "
                                                                  "rank 0"));
}

// A worker of a version without trace requests never answers one.
TEST_F(TraceStreamTest, ANodeThatDoesNotAnswerIsNamed) {
  ScriptedNode node(*workers_, "n1", /*answer=*/nullptr);
  train("a", 1);
  auto result = std::async(std::launch::async, [&] { return profile(request("a", {0})); });
  while (result.wait_for(std::chrono::milliseconds(500)) != std::future_status::ready) node.beat();
  const absl::Status status = result.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rpc::reason(status), "NODE_DOES_NOT_ANSWER");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("node n1, which has rank 0"));
}

TEST_F(TraceStreamTest, BadRequestsGiveTheirReason) {
  EXPECT_EQ(rpc::reason(profile(request("nosuch", {0}))), "JOB_NOT_FOUND");
  nodes_of_job_ = 0;
  train("a", 2);
  const absl::Status queued = profile(request("a", {0}));
  EXPECT_EQ(rpc::reason(queued), "JOB_NOT_RUNNING");
  EXPECT_THAT(std::string(queued.message()), ::testing::HasSubstr("is QUEUED: only a running job can be profiled"));
  EXPECT_EQ(rpc::reason(profile(request("a", {0, 2}))), "RANK_NOT_FOUND");
  EXPECT_EQ(rpc::reason(profile(request("a", {-1}))), "RANK_NOT_FOUND");
  EXPECT_EQ(rpc::reason(profile(request("a", {}))), "RANK_NOT_FOUND");
  EXPECT_EQ(rpc::reason(profile(request("a", {0}, 0))), "BAD_STEPS");
  EXPECT_EQ(rpc::reason(profile(request("a", {0}, 101))), "BAD_STEPS");
  v1::ProfileJobRequest nameless = request("a", {0});
  nameless.clear_request_id();
  EXPECT_EQ(rpc::reason(profile(nameless)), "REQUEST_ID_MISSING");
  v1::ProfileJobRequest later = request("a", {0});
  later.set_attempt(3);
  EXPECT_EQ(rpc::reason(profile(later)), "ATTEMPT_NOT_FOUND");
  ASSERT_TRUE(cancel("a").ok());
  EXPECT_EQ(rpc::reason(profile(request("a", {0}))), "JOB_OVER");
}

}  // namespace
}  // namespace titan::api
