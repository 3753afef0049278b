// Guarantees for clients of JobService and NodeService.

#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

using ::testing::HasSubstr;

class JobServiceTest : public ServiceCase {};

TEST_F(JobServiceTest, CreatesGetsAndCancels) {
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  EXPECT_EQ(created.name(), "projects/default/jobs/a");
  EXPECT_EQ(created.state(), v1::Job::QUEUED);
  EXPECT_GT(created.revision(), 0);
  const auto found = get("a");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->uid(), created.uid());
  EXPECT_EQ(found->spec().config_source(), "# as written");
  EXPECT_THAT(found->spec().config_json(), HasSubstr("/dump/a"));
  ASSERT_TRUE(cancel("projects/default/jobs/a").ok());
  EXPECT_EQ(get("a")->state(), v1::Job::CANCELLED);
}

// A job shows the real path and the id of its folder, which keep other jobs out of it.
TEST_F(JobServiceTest, AJobShowsTheNamesOfItsFolder) {
  v1::CreateJobRequest request = job("a");
  request.mutable_spec()->set_real_folder("/disk/a");
  request.mutable_spec()->set_folder_id("f1");
  v1::Job created;
  ASSERT_TRUE(create(request, &created).ok());
  const auto found = get("a");
  ASSERT_TRUE(found.ok()) << found.status();
  for (const v1::Job& shown : {created, *found}) {
    EXPECT_EQ(shown.spec().dump_folder(), "/dump/a");
    EXPECT_EQ(shown.spec().real_folder(), "/disk/a");
    EXPECT_EQ(shown.spec().folder_id(), "f1");
  }
}

// The mesh of a job has the axes that split anything, with resolved degrees.
TEST_F(JobServiceTest, TheMeshOfAConfigurationIsResolved) {
  config::JobConfig config;
  config.job.dump_folder = "/dump/a";
  config.resources.ranks = 8;
  config.parallelism.tensor_parallel_degree = 2;
  config.parallelism.data_parallel_shard_degree = -1;
  v1::JobSpec sent;
  sent.set_config_json(config::to_json(config).dump());
  const auto checked = check_spec(sent, [] { return "0123456789"; });
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->spec.mesh, (std::map<std::string, int>{{"dp_shard", 4}, {"tp", 2}}));
}

// The controller's specification of a job contains nothing that its configuration does not imply.
TEST_F(JobServiceTest, TheSpecificationIsDerivedFromTheConfiguration) {
  config::JobConfig config;
  config.job.dump_folder = "/dump/a";
  config.resources.ranks = 4;
  config.scheduling.priority = 3;
  v1::JobSpec sent;
  sent.set_config_json(config::to_json(config).dump());
  sent.set_config_source("# as written");
  sent.set_ranks(4);
  sent.set_job_id("requested");
  sent.set_folder_id("f1");
  const auto checked = check_spec(sent, [] { return "0123456789"; });
  ASSERT_TRUE(checked.ok()) << checked.status();
  job::SchedulingSpec derived = spec_of(*config::from_json(nlohmann::json::parse(checked->stored.config_json())));
  EXPECT_EQ(derived.job_id, "requested");
  EXPECT_EQ(derived.ranks, 4);
  EXPECT_EQ(derived.priority, 3);
  derived.folder_id = "f1";  // Only the client's observations are added.
  EXPECT_EQ(nlohmann::json(derived), nlohmann::json(checked->spec));
  v1::JobSpec texts;
  texts.set_config_json(checked->stored.config_json());
  texts.set_config_source("# as written");
  EXPECT_EQ(checked->stored.SerializeAsString(), texts.SerializeAsString());
}

TEST_F(JobServiceTest, AJobWithoutAnIdGetsOne) {
  v1::Job created;
  v1::CreateJobRequest request = job("");
  config::JobConfig config;
  config.job.dump_folder = "/dump/x/../y/";
  request.mutable_spec()->set_config_json(config::to_json(config).dump());
  ASSERT_TRUE(create(request, &created).ok());
  EXPECT_THAT(created.name(), HasSubstr("/jobs/job-"));
  EXPECT_EQ(created.spec().dump_folder(), "/dump/y");
}

// All attempts start from the same seed: a seed that the job does not set is drawn once and stored.
TEST_F(JobServiceTest, SeedIsDrawnOnceWhenTheJobIsCreated) {
  const auto seed_of = [this](const std::string& id) {
    const auto found = get(id);
    EXPECT_TRUE(found.ok()) << found.status();
    return nlohmann::json::parse(found->spec().config_json())["debug"]["seed"];
  };
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  ASSERT_TRUE(create(job("b"), &created).ok());
  v1::CreateJobRequest request = job("c");
  config::JobConfig config;
  config.job.dump_folder = "/dump/c";
  config.scheduling.job_id = "c";
  config.debug.seed = 0;
  request.mutable_spec()->set_config_json(config::to_json(config).dump());
  ASSERT_TRUE(create(request, &created).ok());
  const nlohmann::json drawn = seed_of("a");
  EXPECT_TRUE(drawn.is_number_unsigned()) << drawn;
  EXPECT_NE(drawn, seed_of("b"));
  EXPECT_EQ(seed_of("c"), 0);
  stop();
  start("127.0.0.1:0");
  EXPECT_EQ(seed_of("a"), drawn);
}

TEST_F(JobServiceTest, ATimeLimitIsShownAndBeginsWithTheFirstPlacement) {
  config::JobConfig config;
  config.job.dump_folder = "/dump/a";
  config.scheduling.job_id = "a";
  config.scheduling.time_limit_seconds = 3600;
  v1::CreateJobRequest request;
  request.mutable_spec()->set_config_json(config::to_json(config).dump());
  v1::Job created;
  request.mutable_spec()->set_time_limit_seconds(60);
  EXPECT_EQ(rpc::reason(create(request, &created)), "SPEC_INVALID") << "the message and the configuration disagree";
  request.mutable_spec()->set_time_limit_seconds(3600);
  ASSERT_TRUE(create(request, &created).ok());
  EXPECT_EQ(created.spec().time_limit_seconds(), 3600);
  EXPECT_FALSE(created.has_limit_time()) << "the job is not placed yet";
}

TEST_F(JobServiceTest, BadInputNamesTheFieldAndQueuesNothing) {
  config::JobConfig config;
  config.job.dump_folder = "relative";
  config.scheduling.job_id = "Not_An_Id";
  config.resources.ranks = 4;
  config.resources.ranks_per_node = 3;
  v1::CreateJobRequest request;
  request.mutable_spec()->set_config_json(config::to_json(config).dump());
  v1::Job response;
  const absl::Status refused = create(request, &response);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(rpc::field_violations(refused).empty());
  request.mutable_spec()->set_config_json("{\"training\": {\"step\": 3}}");
  const absl::Status unknown = create(request, &response);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rpc::reason(unknown), "CONFIG_INVALID");
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("training.step"));
  request.mutable_spec()->clear_config_json();
  EXPECT_EQ(rpc::reason(create(request, &response)), "CONFIG_MISSING");
  v1::CreateJobRequest disagreeing = job("a");
  disagreeing.mutable_spec()->set_ranks(8);
  EXPECT_EQ(rpc::field_violations(create(disagreeing, &response)).at(0).field, "spec.ranks");
  v1::ListJobsResponse list;
  ASSERT_TRUE(call(&v1::JobService::Stub::ListJobs, v1::ListJobsRequest(), &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
}

// Lists contain these fields for each job, and a client accepts messages of up to 64 MiB.
TEST_F(JobServiceTest, StoredFieldsOfAJobAreBounded) {
  const auto refusal = [&](const auto& change) {
    v1::CreateJobRequest request = job("a");
    auto config = nlohmann::json::parse(request.spec().config_json());
    change(config, *request.mutable_spec());
    if (request.spec().config_json().size() < 1 << 20) request.mutable_spec()->set_config_json(config.dump());
    v1::Job response;
    const absl::Status status = create(request, &response);
    const auto violations = rpc::field_violations(status);
    return absl::StrCat(rpc::reason(status), " ", violations.size() == 1 ? violations[0].field : "");
  };
  EXPECT_EQ(refusal([](auto& config, auto&) { config["job"]["dump_folder"] = "/" + std::string(4096, 'd'); }),
            "SPEC_INVALID job.dump_folder");
  EXPECT_EQ(refusal([](auto&, auto& spec) { spec.set_real_folder("/" + std::string(4096, 'd')); }),
            "SPEC_INVALID spec.real_folder");
  EXPECT_EQ(refusal([](auto&, auto& spec) { spec.set_folder_id(std::string(4097, 'd')); }),
            "SPEC_INVALID spec.folder_id");
  EXPECT_EQ(refusal([](auto&, auto& spec) { spec.set_config_source(std::string((1 << 20) + 1, '#')); }),
            "TEXT_TOO_LARGE spec.config_source");
  EXPECT_EQ(refusal([](auto& config, auto& spec) {
              config["job"]["description"] = std::string(1 << 20, 'T');
              spec.set_config_json(config.dump());
            }),
            "TEXT_TOO_LARGE spec.config_json");
  EXPECT_EQ(get("a").status().code(), absl::StatusCode::kNotFound);
  // A recipe's description may be longer than a list shows.
  const std::string description(100'000, 'T');
  EXPECT_EQ(refusal([&](auto& config, auto&) { config["job"]["description"] = description; }), " ");
  EXPECT_EQ(get("a")->title(), description.substr(0, 1021) + "...");
  EXPECT_THAT(get("a")->spec().config_json(), HasSubstr(description));
}

TEST_F(JobServiceTest, CordonReasonsAreBounded) {
  v1::CordonNodeRequest cordon;
  v1::DrainNodeRequest drain;
  cordon.set_name("nowhere");
  drain.set_name("nowhere");
  const auto answers = [&](size_t bytes) {
    cordon.set_reason(std::string(bytes, 'R'));
    drain.set_reason(std::string(bytes, 'R'));
    grpc::ClientContext first, second;
    v1::Node node;
    return std::vector<std::string>{rpc::reason(rpc::from_grpc(nodes_->CordonNode(&first, cordon, &node))),
                                    rpc::reason(rpc::from_grpc(nodes_->DrainNode(&second, drain, &node)))};
  };
  EXPECT_THAT(answers(1025), ::testing::Each("REASON_INVALID"));
  EXPECT_THAT(answers(1024), ::testing::Each("NODE_NOT_FOUND"));
}

TEST_F(JobServiceTest, ValidateOnlyAnswersAndQueuesNothing) {
  v1::CreateJobRequest request = job("a");
  request.set_validate_only(true);
  v1::Job response;
  ASSERT_TRUE(create(request, &response).ok());
  EXPECT_EQ(response.name(), "projects/default/jobs/a");
  EXPECT_EQ(get("a").status().code(), absl::StatusCode::kNotFound);
}

// A lost reply, a restart and a repeated request still create only one job.
TEST_F(JobServiceTest, RequestIdsSurviveARestart) {
  v1::CreateJobRequest request = job("a");
  request.set_request_id("5b0c8f3e-0000-4000-8000-000000000001");
  v1::Job first, second;
  ASSERT_TRUE(create(request, &first).ok());
  const int port = server_->port();
  stop();
  start(absl::StrCat("127.0.0.1:", port));
  ASSERT_TRUE(create(request, &second).ok());
  EXPECT_EQ(first.uid(), second.uid());
  request.mutable_spec()->set_config_source("something else");
  EXPECT_EQ(rpc::reason(create(request, &second)), "REQUEST_ID_REUSED");
}

TEST_F(JobServiceTest, PagesAreBoundToTheirRequest) {
  for (int i = 0; i < 7; ++i) {
    v1::Job response;
    ASSERT_TRUE(create(job(absl::StrCat("j", i)), &response).ok());
  }
  v1::ListJobsRequest request;
  request.set_page_size(3);
  std::vector<std::string> names;
  v1::ListJobsResponse page;
  do {
    page.Clear();
    ASSERT_TRUE(call(&v1::JobService::Stub::ListJobs, request, &page).ok());
    EXPECT_LE(page.jobs_size(), 3);
    for (const v1::Job& found : page.jobs()) names.push_back(found.spec().job_id());
    request.set_page_token(page.next_page_token());
  } while (!page.next_page_token().empty());
  EXPECT_THAT(names, ::testing::ElementsAre("j6", "j5", "j4", "j3", "j2", "j1", "j0"));
  request.set_page_token("");
  ASSERT_TRUE(call(&v1::JobService::Stub::ListJobs, request, &page).ok());
  request.set_page_token(page.next_page_token());
  request.add_states(v1::Job::QUEUED);
  EXPECT_EQ(rpc::reason(call(&v1::JobService::Stub::ListJobs, request, &page)), "BAD_PAGE_TOKEN");
  request.set_page_size(-1);
  EXPECT_EQ(rpc::reason(call(&v1::JobService::Stub::ListJobs, request, &page)), "BAD_PAGE_SIZE");
  request.Clear();
  request.add_states(v1::Job::RUNNING);
  page.Clear();
  ASSERT_TRUE(call(&v1::JobService::Stub::ListJobs, request, &page).ok());
  EXPECT_EQ(page.jobs_size(), 0);
}

TEST_F(JobServiceTest, WatchSendsASnapshotAndThenChanges) {
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  grpc::ClientContext context;
  rpc::set_deadline(context, absl::Seconds(20));
  auto stream = jobs_->WatchJobs(&context, v1::WatchJobsRequest());
  v1::JobChange change;
  ASSERT_TRUE(stream->Read(&change));
  EXPECT_EQ(change.kind(), v1::JobChange::SNAPSHOT);
  ASSERT_TRUE(stream->Read(&change));
  EXPECT_EQ(change.kind(), v1::JobChange::SNAPSHOT_END);
  const int64_t revision = change.revision();
  ASSERT_TRUE(cancel("a").ok());
  do {
    ASSERT_TRUE(stream->Read(&change));
  } while (change.job().state() != v1::Job::CANCELLED);
  EXPECT_GT(change.revision(), revision);
  context.TryCancel();
  stream->Finish();

  // A second watcher resumes where the first one's snapshot ended, and sees the same change.
  grpc::ClientContext again;
  rpc::set_deadline(again, absl::Seconds(20));
  v1::WatchJobsRequest from;
  from.set_revision(revision);
  auto resumed = jobs_->WatchJobs(&again, from);
  do {
    ASSERT_TRUE(resumed->Read(&change));
  } while (change.job().state() != v1::Job::CANCELLED);
  again.TryCancel();
  resumed->Finish();
  for (const auto& [at, code] :
       std::vector<std::pair<int64_t, absl::StatusCode>>{{1'000'000, absl::StatusCode::kOutOfRange}}) {
    grpc::ClientContext late;
    v1::WatchJobsRequest request;
    request.set_revision(at);
    auto refused = jobs_->WatchJobs(&late, request);
    EXPECT_FALSE(refused->Read(&change));
    EXPECT_EQ(rpc::from_grpc(refused->Finish()).code(), code);
  }
}

// A finished job can be deleted. Watchers get the deletion, and the job does not return after a restart.
TEST_F(JobServiceTest, DeletedJobIsGoneForWatchersAndAfterRestart) {
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  const auto remove = [this](const std::string& name) {
    grpc::ClientContext context;
    rpc::set_deadline(context, absl::Seconds(20));
    v1::DeleteJobRequest request;
    request.set_name(name);
    v1::Job answer;
    const absl::Status status = rpc::from_grpc(jobs_->DeleteJob(&context, request, &answer));
    return status.ok() ? absl::StatusOr<v1::Job>(answer) : status;
  };
  EXPECT_EQ(rpc::reason(remove("a").status()), "JOB_NOT_OVER");
  EXPECT_EQ(rpc::reason(remove("b").status()), "JOB_NOT_FOUND");
  ASSERT_TRUE(cancel("a").ok());
  grpc::ClientContext context;
  rpc::set_deadline(context, absl::Seconds(20));
  v1::WatchJobsRequest watch;
  watch.set_name("a");
  auto stream = jobs_->WatchJobs(&context, watch);
  v1::JobChange change;
  do {
    ASSERT_TRUE(stream->Read(&change));
  } while (change.kind() != v1::JobChange::SNAPSHOT_END);
  const auto deleted = remove("a");
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  EXPECT_EQ(deleted->state(), v1::Job::CANCELLED) << "the state from before the deletion";
  ASSERT_TRUE(stream->Read(&change));
  EXPECT_EQ(change.kind(), v1::JobChange::DELETED);
  EXPECT_EQ(change.job().uid(), created.uid());
  EXPECT_FALSE(stream->Read(&change));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(remove("a").status().code(), absl::StatusCode::kNotFound);
  stop();
  start("127.0.0.1:0");
  EXPECT_EQ(get("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(create(job("a"), &created).ok()) << "the name is free";
}

TEST_F(JobServiceTest, EventsAreFollowedToTheEndOfTheJob) {
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  grpc::ClientContext context;
  rpc::set_deadline(context, absl::Seconds(20));
  v1::ListEventsRequest request;
  request.set_job("a");
  request.set_follow(true);
  auto stream = jobs_->ListEvents(&context, request);
  v1::Event event;
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.reason(), "JobQueued");
  ASSERT_TRUE(cancel("a").ok());
  std::vector<std::string> reasons;
  while (stream->Read(&event)) reasons.push_back(event.reason());
  EXPECT_THAT(reasons, ::testing::ElementsAre("CancelRequested", "JobCancelled"));
  EXPECT_TRUE(stream->Finish().ok());

  grpc::ClientContext all_context;
  rpc::set_deadline(all_context, absl::Seconds(20));
  auto all = jobs_->ListEvents(&all_context, v1::ListEventsRequest());
  int count = 0;
  while (all->Read(&event)) ++count;
  EXPECT_EQ(count, 3);
  EXPECT_TRUE(all->Finish().ok());
}

TEST_F(JobServiceTest, UnknownNamesAreNotFound) {
  EXPECT_EQ(rpc::reason(get("nothing").status()), "JOB_NOT_FOUND");
  EXPECT_EQ(cancel("nothing").code(), absl::StatusCode::kNotFound);
  grpc::ClientContext context;
  v1::TailLogsRequest request;
  request.set_name("nothing");
  auto stream = jobs_->TailLogs(&context, request);
  v1::LogChunk chunk;
  EXPECT_FALSE(stream->Read(&chunk));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext node_context;
  v1::GetNodeRequest node;
  node.set_name("nodes/none");
  v1::Node found;
  EXPECT_EQ(nodes_->GetNode(&node_context, node, &found).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(JobServiceTest, HealthAndGauges) {
  metrics_.add(std::make_shared<Gauges>(*reconciler_, *store_));
  v1::Job created;
  ASSERT_TRUE(create(job("a"), &created).ok());
  EXPECT_THAT(metrics_.text(), HasSubstr("titan_jobs{state=\"QUEUED\"} 1"));
  EXPECT_THAT(metrics_.text(), HasSubstr("titan_nodes{state=\"READY\"} 0"));
  // Calls grpc.health.v1 without generated code: field 1 of the answer is 1 (SERVING).
  grpc::ByteBuffer answer;
  const grpc::Status status =
      call_by_name("/grpc.health.v1.Health/Check", grpc::Slice("\x0a\x13titan.v1.JobService", 21), answer);
  ASSERT_TRUE(status.ok()) << status.error_message();
  grpc::Slice slice;
  ASSERT_TRUE(answer.TrySingleSlice(&slice).ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(slice.begin()), slice.size()), std::string("\x08\x01"));
}

}  // namespace
}  // namespace titan::api
