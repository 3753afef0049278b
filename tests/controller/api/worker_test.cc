// A worker's stream as the worker sees it, and logs that are read through it.

#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

class WorkerServiceTest : public ServiceCase {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::WorkerMessage, v1::ControllerMessage>;

  std::unique_ptr<Stream> connect(grpc::ClientContext& context, const std::string& node,
                                  const std::string& instance = "i", int64_t memory = 0,
                                  const std::string& device = "cpu", int64_t device_memory = 0) {
    rpc::set_deadline(context, absl::Seconds(20));
    auto stream = workers_->Session(&context);
    v1::WorkerMessage hello;
    hello.mutable_register_()->set_node(node);
    hello.mutable_register_()->set_instance(instance);
    hello.mutable_register_()->set_address("127.0.0.1");
    hello.mutable_register_()->mutable_resources()->set_device(device);
    hello.mutable_register_()->mutable_resources()->set_device_memory_bytes(device_memory);
    hello.mutable_register_()->mutable_resources()->set_devices(1);
    hello.mutable_register_()->mutable_resources()->set_memory_bytes(memory);
    hello.mutable_register_()->mutable_resources()->set_cpu_cores(2);
    stream->Write(hello);
    return stream;
  }
  // Returns the next message of this kind and skips others.
  static v1::ControllerMessage expect(Stream& stream, v1::ControllerMessage::KindCase kind) {
    v1::ControllerMessage message;
    while (stream.Read(&message)) {
      if (message.kind_case() == kind) return message;
    }
    ADD_FAILURE() << "the stream ended without message " << kind;
    return {};
  }
  // Ends the session. The controller's pending messages are read first, because gRPC reports the end of a call only
  // after them.
  static void end(Stream& stream) {
    stream.WritesDone();
    for (v1::ControllerMessage unread; stream.Read(&unread);) continue;
    EXPECT_TRUE(stream.Finish().ok());
  }
  // Waits for an event of the node.
  bool wait_for_event(const std::string& node, const std::string& reason) {
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(20));
    v1::ListEventsRequest request;
    request.set_node(node);
    request.set_follow(true);
    auto stream = jobs_->ListEvents(&context, request);
    bool arrived = false;
    for (v1::Event event; !arrived && stream->Read(&event);) arrived = event.reason() == reason;
    context.TryCancel();
    stream->Finish();
    return arrived;
  }
  static v1::WorkerMessage report(const v1::AttemptId& id, v1::AttemptReport::Phase phase) {
    v1::WorkerMessage message;
    *message.mutable_attempt()->mutable_id() = id;
    message.mutable_attempt()->set_phase(phase);
    message.mutable_attempt()->set_store_port(1234);
    return message;
  }
  // Returns the report of the stream's node after the new job "a" has ended on it.
  v1::WorkerMessage end_of_job_a(Stream& stream) {
    v1::Job created;
    EXPECT_TRUE(create(job("a"), &created).ok());
    return report(expect(stream, v1::ControllerMessage::kPrepare).prepare().id(), v1::AttemptReport::ENDED);
  }
};

TEST_F(WorkerServiceTest, RunsAJobThroughTheStream) {
  grpc::ClientContext context;
  auto stream = connect(context, "n1");
  EXPECT_EQ(expect(*stream, v1::ControllerMessage::kWelcome).welcome().lease_epoch(), 1);
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  const v1::Prepare prepare = expect(*stream, v1::ControllerMessage::kPrepare).prepare();
  EXPECT_TRUE(prepare.leader());
  EXPECT_EQ(prepare.id().job_uid(), created.uid());
  const nlohmann::json launch = nlohmann::json::parse(prepare.launch_json());
  EXPECT_THAT(prepare.device_indices(), ::testing::ElementsAre(0));
  EXPECT_EQ(launch["attempt"], 1);
  EXPECT_EQ(launch["config"]["job"]["dump_folder"], "/dump/a");
  EXPECT_EQ(launch["threads_per_rank"], 2);
  EXPECT_FALSE(get("a")->has_limit_time());
  stream->Write(report(prepare.id(), v1::AttemptReport::PREPARED));
  EXPECT_EQ(expect(*stream, v1::ControllerMessage::kStart).start().store_port(), 1234);
  stream->Write(report(prepare.id(), v1::AttemptReport::STARTED));
  v1::WorkerMessage events;
  *events.mutable_events()->mutable_id() = prepare.id();
  auto* line = events.mutable_events()->add_events();
  line->set_sequence(1);
  line->set_json(R"({"seq":1,"kind":"step","step":1,"metrics":{"loss_metrics/global_avg_loss":3.25}})");
  stream->Write(events);
  EXPECT_EQ(expect(*stream, v1::ControllerMessage::kEventsAck).events_ack().sequence(), 1);
  EXPECT_EQ(get("a")->state(), v1::Job::RUNNING);
  EXPECT_EQ(get("a")->progress().loss(), 3.25);
  const v1::Attempt attempt = get("a")->attempts(0);
  EXPECT_EQ(attempt.ranks(), 1);
  EXPECT_EQ(attempt.config_version(), 1);
  EXPECT_THAT(attempt.placements(0).devices(), ::testing::ElementsAre(0));

  // A reader of logs is served through the same stream.
  grpc::ClientContext log_context;
  rpc::set_deadline(log_context, absl::Seconds(20));
  v1::TailLogsRequest request;
  request.set_name("a");
  request.set_tail_lines(-1);
  auto logs = jobs_->TailLogs(&log_context, request);
  const v1::ReadLog read = expect(*stream, v1::ControllerMessage::kReadLog).read_log();
  EXPECT_EQ(read.offset(), 0);
  // Another node guesses the request's number: its data reaches no reader, and the attempt is reported.
  grpc::ClientContext other_context;
  auto other = connect(other_context, "n2", "j");
  expect(*other, v1::ControllerMessage::kWelcome);
  v1::WorkerMessage forged;
  forged.mutable_log()->set_request(read.request());
  forged.mutable_log()->set_data("forged\n");
  forged.mutable_log()->set_end(true);
  other->Write(forged);
  EXPECT_TRUE(wait_for_event("n2", "NodeSpeaksForOthers"));
  other->WritesDone();
  other->Finish();
  v1::WorkerMessage data;
  data.mutable_log()->set_request(read.request());
  data.mutable_log()->set_data("line one\nline two\nhalf a li");
  data.mutable_log()->set_end(true);
  stream->Write(data);
  v1::LogChunk chunk;
  ASSERT_TRUE(logs->Read(&chunk));
  EXPECT_EQ(chunk.data(), "line one\nline two\n");
  EXPECT_EQ(chunk.node(), "n1");
  EXPECT_FALSE(logs->Read(&chunk));
  EXPECT_TRUE(logs->Finish().ok());

  v1::WorkerMessage ended = report(prepare.id(), v1::AttemptReport::ENDED);
  ended.mutable_attempt()->add_exits();
  stream->Write(ended);
  expect(*stream, v1::ControllerMessage::kForget);
  EXPECT_EQ(get("a")->state(), v1::Job::SUCCEEDED);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

// If the node is gone, a reader of logs gets what the controller has kept, and a notice of it.
TEST_F(WorkerServiceTest, FailedRanksLogTailIsReadableWithoutItsNode) {
  grpc::ClientContext context;
  auto stream = connect(context, "n1");
  v1::WorkerMessage ended = end_of_job_a(*stream);
  v1::RankExitReport* const exit = ended.mutable_attempt()->add_exits();
  exit->set_exit_code(-1);
  exit->set_signal(11);
  exit->set_log_tail("one\ntwo\nthree\n");
  exit->set_log_offset(5000);
  stream->Write(ended);
  expect(*stream, v1::ControllerMessage::kForget);
  EXPECT_EQ(get("a")->attempts(0).exits(0).kept_log_bytes(), 14);
  EXPECT_EQ(get("a")->attempts(0).exits(0).told(), 1);

  v1::TailLogsRequest request;
  request.set_name("a");
  request.set_attempt(1);
  request.set_tail_lines(-1);
  // While the node is connected the log is read from it, although its own log may be gone.
  grpc::ClientContext early;
  rpc::set_deadline(early, absl::Seconds(20));
  auto logs = jobs_->TailLogs(&early, request);
  const v1::ReadLog read = expect(*stream, v1::ControllerMessage::kReadLog).read_log();
  v1::WorkerMessage gone;
  gone.mutable_log()->set_request(read.request());
  gone.mutable_log()->set_end(true);
  gone.mutable_log()->set_closed(true);
  gone.mutable_log()->set_error("no such log");
  stream->Write(gone);
  v1::LogChunk chunk;
  ASSERT_TRUE(logs->Read(&chunk));
  EXPECT_THAT(chunk.notice(), ::testing::HasSubstr("node n1 says: no such log: this is the end of its log that the"));
  ASSERT_TRUE(logs->Read(&chunk));
  EXPECT_EQ(chunk.data(), "one\ntwo\nthree\n");
  EXPECT_EQ(chunk.offset(), 5000);
  EXPECT_FALSE(logs->Read(&chunk));
  EXPECT_TRUE(logs->Finish().ok());

  end(*stream);
  request.set_tail_lines(2);
  for (const bool follow : {false, true}) {
    request.set_follow(follow);
    grpc::ClientContext late;
    rpc::set_deadline(late, absl::Seconds(20));
    auto kept = jobs_->TailLogs(&late, request);
    ASSERT_TRUE(kept->Read(&chunk));
    EXPECT_THAT(chunk.notice(), ::testing::HasSubstr("node n1 cannot be reached: this is the end of its log that the"));
    ASSERT_TRUE(kept->Read(&chunk));
    EXPECT_EQ(chunk.data(), "two\nthree\n");
    EXPECT_EQ(chunk.offset(), 5004);
    if (follow) break;  // The stream would continue with the next attempt.
    EXPECT_FALSE(kept->Read(&chunk));
    EXPECT_TRUE(kept->Finish().ok());
  }
}

// A reader of a log that was evicted gets the reason and the setting to change.
TEST_F(WorkerServiceTest, EvictedLogNamesTheReasonAndTheSetting) {
  stop();
  kept_logs_bytes_ = 10;
  start("127.0.0.1:0");
  grpc::ClientContext context;
  auto stream = connect(context, "n1");
  v1::WorkerMessage ended = end_of_job_a(*stream);
  ended.mutable_attempt()->add_exits()->set_exit_code(1);
  ended.mutable_attempt()->mutable_exits(0)->set_log_tail("one\ntwo\nthree\n");
  stream->Write(ended);
  expect(*stream, v1::ControllerMessage::kForget);
  end(*stream);
  v1::TailLogsRequest request;
  request.set_name("a");
  request.set_attempt(1);
  grpc::ClientContext late;
  rpc::set_deadline(late, absl::Seconds(20));
  auto logs = jobs_->TailLogs(&late, request);
  v1::LogChunk chunk;
  ASSERT_TRUE(logs->Read(&chunk));
  EXPECT_EQ(chunk.notice(),
            "node n1 cannot be reached; the ends of logs that the controller kept for attempt 1 were deleted for lack "
            "of space "
            "(titan-controller --kept-logs-mib), or none was kept");
  late.TryCancel();
  logs->Finish();
}

// A rank that never started has no log: its reader gets the cause of the attempt's end instead.
TEST_F(WorkerServiceTest, LogOfARankThatNeverStartedGivesTheCause) {
  grpc::ClientContext context;
  auto stream = connect(context, "n1");
  v1::WorkerMessage refused = end_of_job_a(*stream);
  refused.mutable_attempt()->set_phase(v1::AttemptReport::REFUSED);
  refused.mutable_attempt()->set_error_reason("DUMP_FOLDER_UNUSABLE");
  refused.mutable_attempt()->set_error_message("the dump folder /dump/a cannot be written");
  stream->Write(refused);
  while (get("a")->attempts(0).end_cause().empty()) std::this_thread::yield();
  v1::TailLogsRequest request;
  request.set_name("a");
  request.set_attempt(1);
  grpc::ClientContext late;
  rpc::set_deadline(late, absl::Seconds(20));
  auto logs = jobs_->TailLogs(&late, request);
  v1::WorkerMessage none;
  none.mutable_log()->set_request(expect(*stream, v1::ControllerMessage::kReadLog).read_log().request());
  none.mutable_log()->set_end(true);
  none.mutable_log()->set_closed(true);
  none.mutable_log()->set_error("it never began on this node");
  stream->Write(none);
  v1::LogChunk chunk;
  ASSERT_TRUE(logs->Read(&chunk));
  EXPECT_THAT(chunk.notice(), ::testing::StartsWith("it never began on this node; attempt 1 ended with USER_ERROR: "));
  EXPECT_THAT(chunk.notice(), ::testing::HasSubstr("the dump folder /dump/a cannot be written"));
  EXPECT_FALSE(logs->Read(&chunk));
  EXPECT_TRUE(logs->Finish().ok());
}

// A job that does not fit on any set of the registered nodes gets a warning at once, or an error if the client requests
// one.
TEST_F(WorkerServiceTest, JobThatCannotFitWarnsAtCreation) {
  v1::CreateJobRequest request = job("early");
  request.set_validate_only(true);
  v1::Job answer;
  ASSERT_TRUE(create(request, &answer).ok());
  ASSERT_EQ(answer.warnings_size(), 1);
  EXPECT_EQ(answer.warnings(0).reason(), "NO_NODES");
  grpc::ClientContext context;
  auto stream = connect(context, "n1");
  expect(*stream, v1::ControllerMessage::kWelcome);
  ASSERT_TRUE(create(request, &answer).ok());
  EXPECT_EQ(answer.warnings_size(), 0);
  config::JobConfig config;
  config.job.dump_folder = "/dump/wide";
  config.scheduling.job_id = "wide";
  config.resources.device = "cpu";
  config.resources.ranks = 2;
  request.mutable_spec()->set_config_json(config::to_json(config).dump());
  request.set_require_fit(true);
  const absl::Status refused = create(request, &answer);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rpc::reason(refused), "INSUFFICIENT_DEVICES");
  request.set_require_fit(false);
  request.set_validate_only(false);
  ASSERT_TRUE(create(request, &answer).ok());
  ASSERT_EQ(answer.warnings_size(), 1);
  EXPECT_THAT(answer.warnings(0).message(), ::testing::HasSubstr("needs 2 cpu devices"));
  EXPECT_EQ(get("wide")->warnings_size(), 0) << "only the answer has warnings";
  stream->WritesDone();
  stream->Finish();
}

// The only node is gone when a client repeats its request.
TEST_F(WorkerServiceTest, RepeatedRequestIsNotCheckedForFitAgain) {
  grpc::ClientContext context;
  auto stream = connect(context, "n1");
  expect(*stream, v1::ControllerMessage::kWelcome);
  reconciler_->cordon("n1", true, "so that it waits", [](const auto&) {});
  v1::CreateJobRequest request = job("a");
  request.set_request_id("5b0c8f3e-0000-4000-8000-000000000004");
  request.set_require_fit(true);
  v1::Job first, second;
  ASSERT_TRUE(create(request, &first).ok());
  end(*stream);
  stop();
  lease_ = absl::Milliseconds(1);
  start("127.0.0.1:0");
  while (reconciler_->node("n1")->node.state != core::NodeState::kLost) reconciler_->tick();
  grpc::ClientContext deleting;
  v1::DeleteNodeRequest gone;
  gone.set_name("n1");
  v1::Node node;
  ASSERT_TRUE(nodes_->DeleteNode(&deleting, gone, &node).ok());
  const absl::Status repeated = create(request, &second);
  ASSERT_TRUE(repeated.ok()) << repeated;
  EXPECT_EQ(second.uid(), first.uid());
  request.set_validate_only(true);
  EXPECT_EQ(rpc::reason(create(request, &second)), "NO_NODES") << "a dry run is checked against the present nodes";
  request = job("b");
  request.set_require_fit(true);
  EXPECT_EQ(rpc::reason(create(request, &second)), "NO_NODES");
}

v1::CreateJobRequest request_of(const config::JobConfig& config) {
  v1::CreateJobRequest request;
  request.mutable_spec()->set_config_json(config::to_json(config).dump());
  request.set_validate_only(true);
  return request;
}

// 70 billion parameters in float32 with Adam take 1 TiB, and more during a step. A node of an older version does not
// report its devices' memory.
TEST_F(WorkerServiceTest, ModelLargerThanTheNodesMemoryWarns) {
  grpc::ClientContext context;
  auto stream = connect(context, "n1", "i", int64_t{32} << 30);
  expect(*stream, v1::ControllerMessage::kWelcome);
  config::JobConfig config;
  config.job.dump_folder = "/dump/large";
  config.model.name = "llama3";
  config.model.flavor = "70B";
  config.resources.device = "cpu";
  v1::CreateJobRequest request = request_of(config);
  v1::Job answer;
  ASSERT_TRUE(create(request, &answer).ok());
  ASSERT_EQ(answer.warnings_size(), 1);
  EXPECT_EQ(answer.warnings(0).reason(), "MEMORY_TOO_SMALL");
  EXPECT_THAT(answer.warnings(0).message(), ::testing::HasSubstr("but the largest device has 32.0 GiB"));
  request.set_require_fit(true);
  EXPECT_EQ(rpc::reason(create(request, &answer)), "MEMORY_TOO_SMALL");
  stream->WritesDone();
  stream->Finish();
}

TEST_F(WorkerServiceTest, JobIsComparedWithGpuMemory) {
  grpc::ClientContext context;
  auto stream = connect(context, "n1", "i", int64_t{2000} << 30, "cuda", int64_t{80} << 30);
  expect(*stream, v1::ControllerMessage::kWelcome);
  v1::Node node;
  grpc::ClientContext asking;
  v1::GetNodeRequest which;
  which.set_name("n1");
  ASSERT_TRUE(v1::NodeService::NewStub(channel_)->GetNode(&asking, which, &node).ok());
  EXPECT_EQ(node.resources().device_memory_bytes(), int64_t{80} << 30);

  config::JobConfig config;
  config.job.dump_folder = "/dump/gpu";
  config.resources.device = "cuda";
  v1::Job answer;
  ASSERT_TRUE(create(request_of(config), &answer).ok());
  EXPECT_EQ(answer.warnings_size(), 0) << answer.warnings(0).message();
  config.model.flavor = "8B";  // 120 GiB between steps.
  ASSERT_TRUE(create(request_of(config), &answer).ok());
  ASSERT_EQ(answer.warnings_size(), 1);
  EXPECT_EQ(answer.warnings(0).reason(), "MEMORY_TOO_SMALL");
  EXPECT_THAT(answer.warnings(0).message(), ::testing::HasSubstr("but the largest device has 80.0 GiB"));
  stream->WritesDone();
  stream->Finish();
}

// A dry run shows every key of the job that would be queued.
TEST_F(WorkerServiceTest, ADryRunShowsTheResolvedConfiguration) {
  v1::CreateJobRequest request = job("shown");
  request.set_validate_only(true);
  v1::Job answer;
  ASSERT_TRUE(create(request, &answer).ok());
  const nlohmann::json config = nlohmann::json::parse(answer.spec().config_json());
  EXPECT_EQ(config["parallelism"]["data_parallel_shard_degree"], 1);
  EXPECT_TRUE(config["debug"]["seed"].is_number());
}

// A backup is most needed when the disk is full or the state folder is gone.
TEST_F(WorkerServiceTest, ABackupNeedsNoScratchFolder) {
  stop();
  scratch_ = "/nothing/here";
  start("127.0.0.1:0");
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  const auto stub = v1::ClusterService::NewStub(channel_);
  grpc::ClientContext context;
  const auto stream = stub->Backup(&context, {});
  v1::BackupChunk chunk;
  std::string bytes;
  while (stream->Read(&chunk)) bytes += chunk.data();
  ASSERT_TRUE(stream->Finish().ok());
  std::ofstream(folder_ + "/copy", std::ios::binary) << bytes;
  const auto copy = store::check_store(folder_ + "/copy");
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->cluster, store_->id());
  EXPECT_GE(copy->revision, created.revision());
}

TEST_F(WorkerServiceTest, ClusterReportsItsStateFoldersProblem) {
  const auto stub = v1::ClusterService::NewStub(channel_);
  for (const std::string problem : {"", "the disk of /state is full"}) {
    state_folder_problem_ = problem;
    grpc::ClientContext context;
    v1::Cluster cluster;
    ASSERT_TRUE(stub->GetCluster(&context, {}, &cluster).ok());
    EXPECT_EQ(cluster.state_folder_problem(), problem);
  }
}

TEST_F(WorkerServiceTest, ClusterIsDescribedAndBackedUp) {
  grpc::ClientContext context, backup_context;
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  const auto stub = v1::ClusterService::NewStub(channel_);
  v1::Cluster cluster;
  ASSERT_TRUE(stub->GetCluster(&context, {}, &cluster).ok());
  EXPECT_EQ(cluster.id(), store_->id());
  EXPECT_EQ(cluster.live_jobs(), 1);
  EXPECT_EQ(cluster.nodes(), 0);
  backup_context.AddMetadata("titan-user", "alice");
  const auto stream = stub->Backup(&backup_context, {});
  v1::BackupChunk chunk;
  std::string bytes;
  int64_t size = 0;
  while (stream->Read(&chunk)) {
    size = std::max(size, chunk.size());
    bytes += chunk.data();
  }
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_THAT(backup_actors_, ::testing::ElementsAre("user:alice"));
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), size);
  std::ofstream(folder_ + "/copy", std::ios::binary) << bytes;
  const auto copy = store::check_store(folder_ + "/copy");
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->cluster, store_->id());
  EXPECT_GE(copy->revision, created.revision());
  for (const auto& item : std::filesystem::directory_iterator(folder_))
    EXPECT_EQ(item.path().filename().string().find("backup-"), std::string::npos) << "the sent copy was deleted";
}

TEST_F(WorkerServiceTest, RegistrationEventNamesItsActor) {
  grpc::ClientContext context, events_context;
  auto stream = connect(context, "n1");
  expect(*stream, v1::ControllerMessage::kWelcome);
  v1::ListEventsRequest request;
  request.set_node("n1");
  request.set_follow(true);
  v1::Event event;
  const auto events = jobs_->ListEvents(&events_context, request);
  ASSERT_TRUE(events->Read(&event));
  EXPECT_EQ(event.reason(), "NodeRegistered");
  EXPECT_EQ(event.actor(), absl::StrCat("local:", geteuid()));
  events_context.TryCancel();
}

TEST_F(WorkerServiceTest, NodesAreListedAndCordoned) {
  grpc::ClientContext first_context, second_context;
  auto first = connect(first_context, "n1");
  auto second = connect(second_context, "n2");
  expect(*first, v1::ControllerMessage::kWelcome);
  expect(*second, v1::ControllerMessage::kWelcome);
  grpc::ClientContext list_context;
  v1::ListNodesRequest request;
  request.set_page_size(1);
  v1::ListNodesResponse page;
  ASSERT_TRUE(nodes_->ListNodes(&list_context, request, &page).ok());
  ASSERT_EQ(page.nodes_size(), 1);
  EXPECT_EQ(page.nodes(0).name(), "nodes/n1");
  EXPECT_EQ(page.nodes(0).state(), v1::Node::READY);
  grpc::ClientContext next_context;
  request.set_page_token(page.next_page_token());
  page.Clear();
  ASSERT_TRUE(nodes_->ListNodes(&next_context, request, &page).ok());
  EXPECT_EQ(page.nodes(0).name(), "nodes/n2");
  EXPECT_TRUE(page.next_page_token().empty());
  grpc::ClientContext cordon_context;
  v1::CordonNodeRequest cordon;
  cordon.set_name("n2");
  cordon.set_reason("disk");
  v1::Node node;
  ASSERT_TRUE(nodes_->CordonNode(&cordon_context, cordon, &node).ok());
  EXPECT_TRUE(node.cordoned());
  first->WritesDone();
  second->WritesDone();
  first->Finish();
  second->Finish();
}

TEST_F(WorkerServiceTest, LostNodesCanBeDeleted) {
  const auto remove = [&](const std::string& name, bool allow_missing, v1::Node& node) {
    grpc::ClientContext context;
    v1::DeleteNodeRequest request;
    request.set_name(name);
    request.set_allow_missing(allow_missing);
    return rpc::from_grpc(nodes_->DeleteNode(&context, request, &node));
  };
  v1::Node node;
  EXPECT_EQ(rpc::reason(remove("n1", false, node)), "NODE_NOT_FOUND");
  EXPECT_TRUE(remove("n1", true, node).ok());
  EXPECT_EQ(node.name(), "nodes/n1");
  {
    grpc::ClientContext context;
    auto stream = connect(context, "n1");
    expect(*stream, v1::ControllerMessage::kWelcome);
    const absl::Status refused = remove("nodes/n1", false, node);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(rpc::reason(refused), "NODE_NOT_LOST");
    stream->WritesDone();
    stream->Finish();
  }
  stop();
  lease_ = absl::Milliseconds(1);
  start("127.0.0.1:0");
  while (reconciler_->node("n1")->node.state != core::NodeState::kLost) reconciler_->tick();
  ASSERT_TRUE(remove("n1", false, node).ok());
  EXPECT_EQ(node.state(), v1::Node::LOST);
  grpc::ClientContext context;
  v1::ListNodesResponse page;
  ASSERT_TRUE(nodes_->ListNodes(&context, {}, &page).ok());
  EXPECT_EQ(page.nodes_size(), 0);
}

TEST_F(WorkerServiceTest, TwinsAndUnregisteredStreamsAreRefused) {
  grpc::ClientContext context, twin_context, nameless_context;
  auto stream = connect(context, "n1");
  expect(*stream, v1::ControllerMessage::kWelcome);
  auto twin = connect(twin_context, "n1", "other");
  v1::ControllerMessage message;
  EXPECT_FALSE(twin->Read(&message));
  const absl::Status refused = rpc::from_grpc(twin->Finish());
  EXPECT_EQ(rpc::reason(refused), "NODE_ID_IN_USE");
  rpc::set_deadline(nameless_context, absl::Seconds(10));
  auto nameless = workers_->Session(&nameless_context);
  v1::WorkerMessage beat;
  beat.mutable_beat();
  nameless->Write(beat);
  EXPECT_FALSE(nameless->Read(&message));
  EXPECT_EQ(rpc::reason(rpc::from_grpc(nameless->Finish())), "REGISTER_FIRST");
  stream->WritesDone();
  stream->Finish();
}

}  // namespace
}  // namespace titan::api
