#include "controller/api/job_spec.h"

#include <zlib.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/id.h"
#include "common/base/text/utf8.h"
#include "common/plan/config/json.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/config/validate.h"
#include "controller/api/job_requests.h"
#include "controller/core/labels.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "nlohmann/json.hpp"

namespace titan::api {
namespace {

using rpc::FieldViolation;

absl::StatusOr<config::JobConfig> read_config(const std::string& text) {
  if (text.empty()) {
    return rpc::bad_request("CONFIG_MISSING",
                            {{"spec.config_json", "must hold the resolved configuration; titanctl submit sends it"}});
  }
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return rpc::bad_request("CONFIG_INVALID", {{"spec.config_json", "is not a JSON object"}});
  absl::StatusOr<config::JobConfig> config = config::from_json(json);
  if (!config.ok()) {
    return rpc::bad_request("CONFIG_INVALID", {{"spec.config_json", std::string(config.status().message())}},
                            std::string(config.status().message()));
  }
  const std::vector<config::Problem> problems = config::check(*config);
  if (!problems.empty()) return config_refusal(problems, /*field=*/"");
  return config;
}

std::string normalise(const std::string& folder) {
  std::string path = std::filesystem::path(folder).lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Adds a violation if a field that the message sets differs from the configuration's value.
template <typename Value>
void must_agree(const char* field, const Value& sent, const Value& configured,
                std::vector<FieldViolation>& violations) {
  if (sent == Value{} || sent == configured) return;
  violations.push_back(
      {absl::StrCat("spec.", field), absl::StrCat("is ", sent, " but the configuration says ", configured)});
}

struct Bounded {
  std::string field;
  const std::string& text;
  size_t most = 0;
};

// Runs first and on its own, so that the texts that other refusals quote are short.
absl::Status check_lengths(const char* reason, std::initializer_list<Bounded> texts) {
  std::vector<FieldViolation> violations;
  for (const auto& [field, text, most] : texts) {
    if (text.size() > most) violations.push_back(too_long(field, text.size(), most));
  }
  return violations.empty() ? absl::OkStatus() : rpc::bad_request(reason, violations);
}

// Returns the axes with a degree above 1 in a resolved configuration, by name.
std::map<std::string, int> mesh_of(const config::JobConfig& config) {
  using mesh::Axis;
  const auto mesh = mesh::Mesh::create(config::degrees_of(config.parallelism), config.resources.ranks);
  if (!mesh.ok()) return {};  // It was checked before.
  const mesh::Degrees& degrees = mesh->degrees();
  const std::pair<Axis, int> all[] = {{Axis::kPipeline, degrees.pp},     {Axis::kReplicate, degrees.dp_replicate},
                                      {Axis::kShard, degrees.dp_shard},  {Axis::kContext, degrees.cp},
                                      {Axis::kTensor, degrees.tp},       {Axis::kExpert, degrees.ep},
                                      {Axis::kExpertTensor, degrees.etp}};
  std::map<std::string, int> axes;
  for (const auto& [axis, degree] : all) {
    if (degree > 1) axes[mesh::name(axis)] = degree;
  }
  return axes;
}

}  // namespace

FieldViolation too_long(const std::string& field, size_t bytes, size_t most) {
  return {field, absl::StrCat("is ", bytes, " bytes long, but at most ", most, " are kept")};
}

job::SchedulingSpec spec_of(const config::JobConfig& config) {
  const config::ResourcesSection& resources = config.resources;
  job::SchedulingSpec spec;
  spec.title = text::shortened(config.job.description, kMaxTitleBytes);
  spec.dump_folder = config.job.dump_folder;
  spec.device = resources.device;
  spec.ranks = config::processes(config);  // Processes are placed, started and watched.
  spec.ranks_per_node = spec.ranks == resources.ranks ? resources.ranks_per_node : 0;
  spec.threads_per_rank = resources.threads_per_rank;
  spec.priority = config.scheduling.priority;
  spec.time_limit_seconds = config.scheduling.time_limit_seconds;
  spec.total_steps = config.training.steps;
  spec.project = config.scheduling.project;
  spec.job_id = config.scheduling.job_id;
  spec.saves = config.checkpoint.enable;
  spec.mesh = mesh_of(config);
  spec.restart = {config.restart, static_cast<double>(config.comm.init_timeout_seconds),
                  static_cast<double>(config.comm.train_timeout_seconds)};
  return spec;
}

absl::StatusOr<CheckedSpec> check_spec(const v1::JobSpec& sent, const std::function<std::string()>& new_id) {
  TITAN_RETURN_IF_ERROR(
      check_lengths("TEXT_TOO_LARGE", {{"spec.config_json", sent.config_json(), kMaxConfigBytes},
                                       {"spec.config_source", sent.config_source(), kMaxConfigBytes}}));
  TITAN_ASSIGN_OR_RETURN(config::JobConfig config, read_config(sent.config_json()));
  return check_spec(sent, std::move(config), new_id);
}

absl::StatusOr<CheckedSpec> check_spec(const v1::JobSpec& sent, config::JobConfig config,
                                       const std::function<std::string()>& new_id) {
  TITAN_RETURN_IF_ERROR(check_lengths("SPEC_INVALID", {{"job.dump_folder", config.job.dump_folder, kMaxPathBytes},
                                                       {"spec.dump_folder", sent.dump_folder(), kMaxPathBytes},
                                                       {"spec.real_folder", sent.real_folder(), kMaxPathBytes},
                                                       {"spec.folder_id", sent.folder_id(), kMaxPathBytes}}));
  std::vector<FieldViolation> violations;
  must_agree("ranks", sent.ranks(), config.resources.ranks, violations);
  must_agree("ranks_per_node", sent.ranks_per_node(), config.resources.ranks_per_node, violations);
  must_agree("device", sent.device(), config.resources.device, violations);
  must_agree("priority", sent.priority(), config.scheduling.priority, violations);
  must_agree("time_limit_seconds", sent.time_limit_seconds(), int64_t{config.scheduling.time_limit_seconds},
             violations);
  must_agree("dump_folder", sent.dump_folder(), config.job.dump_folder, violations);
  must_agree("project", sent.project(), config.scheduling.project, violations);
  if (!absl::StartsWith(config.job.dump_folder, "/")) {
    violations.push_back(
        {"job.dump_folder", absl::StrCat("is ", config.job.dump_folder,
                                         ", but must be an absolute path: the controller has another working folder")});
  }
  const config::ResourcesSection& resources = config.resources;
  if (resources.ranks_per_node > 0 && resources.ranks % resources.ranks_per_node != 0) {
    violations.push_back(
        {"resources.ranks_per_node",
         absl::StrCat("is ", resources.ranks_per_node, ", which does not divide resources.ranks = ", resources.ranks)});
  }
  if (!sent.job_id().empty()) config.scheduling.job_id = sent.job_id();
  const std::string& job_id = config.scheduling.job_id;
  if (!job_id.empty() && !text::is_id(job_id)) {
    violations.push_back({"scheduling.job_id", absl::StrCat("is '", job_id, "', but must match ", text::kIdRule)});
  }
  if (!text::is_id(config.scheduling.project)) {
    violations.push_back(
        {"scheduling.project", absl::StrCat("is '", config.scheduling.project, "', but must match ", text::kIdRule)});
  }
  if (!violations.empty()) return rpc::bad_request("SPEC_INVALID", violations);

  CheckedSpec checked;
  config::resolve(config);
  config.job.dump_folder = normalise(config.job.dump_folder);
  // Stays out of the configuration, which may be submitted again.
  const std::string drawn_id = job_id.empty() ? absl::StrCat("job-", new_id().substr(0, 8)) : "";
  // Drawn once for the job's life: an attempt that starts before the first checkpoint draws the same weights again.
  if (!config.debug.seed) config.debug.seed = config::seed_of(new_id());
  checked.spec = spec_of(config);
  if (checked.spec.job_id.empty()) checked.spec.job_id = drawn_id;
  checked.spec.real_folder = normalise(sent.real_folder());
  checked.spec.folder_id = sent.folder_id();
  checked.stored.set_config_json(config::to_json_text(config));
  checked.stored.set_config_source(sent.config_source());
  checked.config = std::move(config);
  return checked;
}

absl::StatusOr<CheckedSpec> check_request(const v1::CreateJobRequest& request,
                                          const std::function<std::string()>& new_id) {
  TITAN_RETURN_IF_ERROR(core::check_labels({request.labels().begin(), request.labels().end()}));
  if (!request.has_source()) return check_spec(request.spec(), new_id);
  TITAN_ASSIGN_OR_RETURN(ResolvedSource source, resolve_source(request));
  TITAN_ASSIGN_OR_RETURN(CheckedSpec checked, check_spec(source.spec, std::move(source.config), new_id));
  checked.warnings = std::move(source.warnings);
  return checked;
}

// A request that has only a specification has the same fingerprint as before labels and texts existed: the store holds
// fingerprints of that time.
uint32_t fingerprint(const v1::CreateJobRequest& request) {
  v1::CreateJobRequest rest;
  *rest.mutable_labels() = request.labels();
  if (request.has_source()) *rest.mutable_source() = request.source();
  std::string bytes = request.spec().SerializeAsString();
  {
    google::protobuf::io::StringOutputStream out(&bytes);
    google::protobuf::io::CodedOutputStream coded(&out);
    coded.SetSerializationDeterministic(true);  // Maps have no fixed order.
    rest.SerializeToCodedStream(&coded);
  }
  return static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

}  // namespace titan::api
