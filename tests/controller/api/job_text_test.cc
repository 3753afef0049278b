// A job as text: the controller resolves it as titanctl would, and an error lists everything that is wrong.

#include <algorithm>
#include <random>

#include "controller/api/job_requests.h"
#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kToml[] = R"([job]
description = "from text"
dump_folder = "/dump/text"
[training]
steps = 12
[resources]
ranks = 2
[scheduling]
priority = 3
)";
constexpr char kYaml[] =
    "job: {description: from text, dump_folder: /dump/text}\ntraining:\n  steps: 12\nresources:\n  ranks: 2\n"
    "scheduling:\n  priority: 3\n";
constexpr char kJson[] =
    R"( {"job": {"description": "from text", "dump_folder": "/dump/text"}, "training": {"steps": 12},
  "resources": {"ranks": 2}, "scheduling": {"priority": 3}})";

class JobTextTest : public ServiceCase {
 protected:
  static v1::CreateJobRequest text(const std::string& text, const std::string& name = "job.toml") {
    v1::CreateJobRequest request;
    request.mutable_source()->set_text(text);
    request.mutable_source()->set_file_name(name);
    return request;
  }
  static v1::CreateJobRequest yaml(const std::string& written) {
    v1::CreateJobRequest request = text(written, "job.yaml");
    request.mutable_source()->set_format(v1::JobText::YAML);
    return request;
  }
  absl::Status refusal(const v1::CreateJobRequest& request) {
    v1::Job job;
    return create(request, &job);
  }
};

std::vector<std::string> fields_of(const absl::Status& status) {
  std::vector<std::string> fields;
  for (const rpc::FieldViolation& violation : rpc::field_violations(status)) fields.push_back(violation.field);
  return fields;
}

TEST_F(JobTextTest, EveryFormatGivesTheSameJob) {
  for (const char* written : {kToml, kYaml, kJson}) {
    v1::CreateJobRequest request = text(written);
    request.set_validate_only(true);
    v1::Job job;
    const absl::Status status = create(request, &job);
    ASSERT_TRUE(status.ok()) << status << written;
    EXPECT_EQ(job.title(), "from text");
    EXPECT_EQ(job.spec().dump_folder(), "/dump/text");
    EXPECT_EQ(job.spec().ranks(), 2);
    EXPECT_EQ(job.spec().priority(), 3);
    EXPECT_EQ(job.spec().config_source(), written);
    const auto config = nlohmann::json::parse(job.spec().config_json());
    EXPECT_EQ(config["training"]["steps"], 12);
    EXPECT_EQ(config["parallelism"]["data_parallel_shard_degree"], 2) << "resolved";
  }
}

// The controller derives from a text the same request that titanctl would have sent.
TEST_F(JobTextTest, TextGivesTheRequestThatTitanctlSends) {
  config::JobConfig config;
  config.job.description = "from text";
  config.job.dump_folder = "/dump/text";
  config.training.steps = 12;
  config.resources.ranks = 2;
  config.scheduling.priority = 3;
  config.debug.seed = 1;
  v1::CreateJobRequest sent;
  sent.mutable_spec()->set_config_json(config::to_json(config).dump());
  v1::CreateJobRequest written = text(kToml);
  written.mutable_source()->add_overrides("debug.seed=1");
  v1::Job a, b;
  sent.set_validate_only(true);
  written.set_validate_only(true);
  ASSERT_TRUE(create(sent, &a).ok());
  ASSERT_TRUE(create(written, &b).ok());
  EXPECT_EQ(nlohmann::json::parse(a.spec().config_json())["training"],
            nlohmann::json::parse(b.spec().config_json())["training"]);
  EXPECT_EQ(nlohmann::json::parse(a.spec().config_json())["parallelism"],
            nlohmann::json::parse(b.spec().config_json())["parallelism"]);
}

TEST_F(JobTextTest, OverridesWinWithAndWithoutDashes) {
  v1::CreateJobRequest request = text(kToml);
  request.mutable_source()->add_overrides("--training.steps=10");
  request.mutable_source()->add_overrides("resources.ranks=4");
  request.mutable_spec()->set_job_id("chosen");
  v1::Job job;
  const absl::Status status = create(request, &job);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(job.name(), "projects/default/jobs/chosen");
  EXPECT_EQ(job.spec().ranks(), 4);
  const auto found = get("chosen");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(nlohmann::json::parse(found->spec().config_json())["training"]["steps"], 10);
  EXPECT_THAT(found->spec().config_source(), HasSubstr("# command line: --training.steps=10 --resources.ranks=4"));
}

TEST_F(JobTextTest, EveryBadKeyIsNamedWithItsLine) {
  const absl::Status bad = refusal(text("[training]\nstep = 3\nsteps = 'many'\n[jobb]\ndump_folder = '/d'\n"));
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rpc::reason(bad), "CONFIG_INVALID");
  EXPECT_THAT(fields_of(bad), ::testing::IsSupersetOf({"training.step", "training.steps", "jobb.dump_folder"}));
  EXPECT_THAT(rpc::field_violations(bad).at(0).description, HasSubstr("job.toml:2: training.step = 3: unknown key"));
  EXPECT_THAT(std::string(bad.message()), HasSubstr("job.toml:3: training.steps"));
  v1::CreateJobRequest overridden = text(kToml);
  overridden.mutable_source()->add_overrides("training.stepz=3");
  EXPECT_THAT(rpc::field_violations(refusal(overridden)).at(0).description, HasSubstr("command line"));
}

// More errors than fit into a status: the rest is counted, and the code and reason stay.
TEST_F(JobTextTest, ManyBadKeysFitIntoOneStatus) {
  std::string written = "[training]\n";
  for (int i = 0; i < 20'000; ++i) absl::StrAppend(&written, "unknown_key_number_", i, " = ", i, "\n");
  const absl::Status bad = refusal(text(written));
  EXPECT_EQ(rpc::reason(bad), "CONFIG_INVALID") << bad;
  const std::vector<rpc::FieldViolation> violations = rpc::field_violations(bad);
  ASSERT_GT(violations.size(), 20u);
  EXPECT_EQ(violations[20].field, "training.unknown_key_number_20");
  EXPECT_EQ(violations.back().description, absl::StrCat("and ", 20'000 - violations.size() + 1, " more"));
}

// A wrong type gives the same message in all three formats.
TEST_F(JobTextTest, TypeErrorsAreTheSameInAllFormats) {
  const auto message = [this](const std::string& written) {
    const absl::Status bad = refusal(text(written, "f"));
    EXPECT_EQ(rpc::field_violations(bad).size(), 1u) << bad;
    const std::string all(bad.message());
    return all.substr(all.find("training.steps"));
  };
  const std::string toml = message("[job]\ndump_folder = '/d'\n[training]\nsteps = 'many'\n");
  EXPECT_EQ(toml, message("{\"job\": {\"dump_folder\": \"/d\"}, \"training\": {\"steps\": \"many\"}}"));
  EXPECT_EQ(toml, message("job:\n  dump_folder: /d\ntraining:\n  steps: \"many\"\n"));
}

TEST_F(JobTextTest, RelativePathsAreRefused) {
  const absl::Status bad = refusal(text("[job]\ndump_folder = 'out'\n[training]\ndataset_path = 'data'\n"));
  EXPECT_THAT(fields_of(bad), ElementsAre("job.dump_folder", "training.dataset_path"));
  EXPECT_THAT(rpc::field_violations(bad).at(0).description,
              HasSubstr("job.toml:2: job.dump_folder = out: must be an absolute path"));
  const absl::Status unset = refusal(text("[training]\nsteps = 3\n"));
  EXPECT_THAT(fields_of(unset), ElementsAre("job.dump_folder"));
}

TEST_F(JobTextTest, BadTextsAreRefused) {
  EXPECT_THAT(fields_of(refusal(text("[training\nsteps = 3"))), Contains("source.text"));
  EXPECT_THAT(std::string(refusal(text("")).message()), HasSubstr("sets no key"));
  EXPECT_THAT(std::string(refusal(yaml("job: {a: 1, a: 2}\n")).message()), HasSubstr("set twice"));
  EXPECT_THAT(std::string(refusal(yaml("? [a, b]\n: 1\njob: {dump_folder: /d}\n")).message()),
              HasSubstr("a key must be a plain name"));
  v1::CreateJobRequest large = text(std::string(kMaxConfigBytes + 1, '#'));
  EXPECT_EQ(rpc::reason(refusal(large)), "TEXT_TOO_LARGE");
  v1::CreateJobRequest both = job("a");
  both.mutable_source()->set_text(kToml);
  EXPECT_EQ(rpc::reason(refusal(both)), "TWO_SOURCES");
  v1::CreateJobRequest disagreeing = text(kToml);
  disagreeing.mutable_spec()->set_ranks(8);
  EXPECT_THAT(fields_of(refusal(disagreeing)), ElementsAre("spec.ranks"));
  v1::ListJobsResponse list;
  ASSERT_TRUE(call(&v1::JobService::Stub::ListJobs, v1::ListJobsRequest(), &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
}

// A few aliases describe a tree or a text that does not fit into memory.
TEST_F(JobTextTest, YamlBombsAreRefused) {
  std::string wide = "a: &a [x,x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    const std::string before(1, static_cast<char>(c - 1));
    wide += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 10; ++i) absl::StrAppend(&wide, i > 0 ? "," : "", "*", before);
    wide += "]\n";
  }
  EXPECT_THAT(std::string(refusal(yaml(wide)).message()), HasSubstr("too many values"));
  std::string heavy = "a: &a " + std::string(400'000, 'x') + "\nb: [";
  for (int i = 0; i < 20'000; ++i) heavy += i > 0 ? ",*a" : "*a";
  heavy += "]\n";
  v1::CreateJobRequest request = yaml(heavy);
  EXPECT_THAT(std::string(refusal(request).message()), HasSubstr("too many values"));
  for (const char* open : {"[", "{a: "}) {
    std::string deep = "a: ";
    for (int i = 0; i < 20'000; ++i) deep += open;
    request.mutable_source()->set_text(deep);
    EXPECT_EQ(refusal(request).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(JobTextTest, RepeatedRequestGivesTheSameJob) {
  v1::CreateJobRequest request = text(kToml);
  request.set_request_id("5b0c8f3e-0000-4000-8000-000000000002");
  for (const char* key : {"a", "b", "c", "d"}) (*request.mutable_labels())[key] = "x";
  v1::Job first, second;
  ASSERT_TRUE(create(request, &first).ok());
  ASSERT_TRUE(create(request, &second).ok());
  EXPECT_EQ(first.uid(), second.uid());
  v1::CreateJobRequest other = request;
  other.mutable_source()->add_overrides("training.steps=11");
  EXPECT_EQ(rpc::reason(create(other, &second)), "REQUEST_ID_REUSED");
  other = request;
  (*other.mutable_labels())["a"] = "y";
  EXPECT_EQ(rpc::reason(create(other, &second)), "REQUEST_ID_REUSED");
}

TEST_F(JobTextTest, JobThatFitsNowhereIsAPreconditionFailure) {
  v1::CreateJobRequest request = text(kToml);
  request.set_require_fit(true);
  const absl::Status refused = refusal(request);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_FALSE(rpc::precondition_violations(refused).empty());
  EXPECT_EQ(rpc::precondition_violations(refused).at(0).type, rpc::reason(refused));
}

// Arbitrary bytes must neither crash the controller nor give another status.
TEST(JobSourceTest, AnyTextGivesASpecificationOrInvalidArgument) {
  std::mt19937 random(7);
  const auto below = [&random](size_t end) { return static_cast<size_t>(random() % end); };
  const std::string pieces[] = {"[",
                                "]",
                                "{",
                                "}",
                                "\"",
                                "'",
                                "=",
                                ":",
                                "\n",
                                "#",
                                "&a ",
                                "*a",
                                "- ",
                                "\\u00",
                                ".",
                                "--",
                                "1e999",
                                "\xff",
                                std::string(1, '\0'),
                                "'''",
                                "\"\"\"",
                                "? ",
                                "!!str ",
                                "<<: *a"};
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    if (i % 3 == 0) {
      for (size_t left = below(200); left > 0; --left) text.push_back(static_cast<char>(random() % 256));
    } else {
      const char* valid[] = {kToml, kYaml, kJson};
      text = valid[below(3)];
      for (size_t edits = 1 + below(6); edits > 0; --edits) {
        const size_t at = below(text.size() + 1);
        switch (below(3)) {
          case 0:
            text.erase(at, below(20));
            break;
          case 1:
            text.insert(at, pieces[below(std::size(pieces))]);
            break;
          default:
            text.insert(at, text.substr(below(text.size() + 1), below(40)));
        }
      }
    }
    v1::CreateJobRequest request;
    request.mutable_source()->set_text(text);
    request.mutable_source()->set_format(static_cast<v1::JobText::Format>(below(4)));
    if (i % 5 == 0) request.mutable_source()->add_overrides(text.substr(0, 30));
    const auto spec = resolve_source(request);
    if (spec.ok()) continue;
    ++refused;
    ASSERT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << text;
    ASSERT_FALSE(rpc::field_violations(spec.status()).empty()) << text;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace titan::api
