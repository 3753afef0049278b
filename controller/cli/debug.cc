// titanctl cluster debug: collects what helps to find a fault, in one file.

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/host/host_facts.h"
#include "common/base/redact/redact.h"
#include "common/base/text/quantities.h"
#include "common/base/version/version.h"
#include "common/service/metrics/page.h"
#include "controller/cli/client.h"
#include "controller/cli/cluster_commands.h"
#include "controller/cli/debug_bundle.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/message_json.h"
#include "controller/cli/terminal.h"

extern char** environ;

namespace titan::cli {
namespace {

using nlohmann::ordered_json;

constexpr int kPage = 1000;
constexpr size_t kJobsInFull = 100;
constexpr size_t kEventsOfAJob = 500;
constexpr absl::Duration kRecently = absl::Hours(24);
constexpr size_t kWorkerPages = 100;
constexpr absl::Duration kWorkerPageTimeout = absl::Seconds(2);

// Variables that change what Titan's programs and their libraries do; no others are read.
constexpr absl::string_view kVariables[] = {"TITAN_",       "CUDA_",     "NCCL_",
                                            "GLOO_",        "OMP_",      "MKL_",
                                            "TORCH_",       "GRPC_",     "LD_LIBRARY_PATH=",
                                            "PATH=",        "LANG=",     "LC_",
                                            "TMPDIR=",      "XDG_",      "http_proxy=",
                                            "https_proxy=", "no_proxy=", "HTTP_PROXY=",
                                            "HTTPS_PROXY=", "NO_PROXY=", "SLURM_JOB_ID="};

ordered_json environment() {
  ordered_json all = ordered_json::object();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const bool wanted = std::any_of(std::begin(kVariables), std::end(kVariables),
                                    [&](absl::string_view prefix) { return absl::StartsWith(text, prefix); });
    const size_t equals = text.find('=');
    if (wanted && equals != absl::string_view::npos)
      all[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  }
  redact::values(all);
  return all;
}

void add_local(DebugBundle& bundle) {
  ordered_json build = ordered_json::object();
  for (const auto& [name, value] : build_manifest()) build[name] = value;
  bundle.add("local/version.json", ordered_json{{"titanctl", version()}, {"revision", revision()}, {"build", build}});
  bundle.add("local/host.json", ordered_json(host::facts({".", "/", "/tmp", "/var/lib"})));
  bundle.add("local/environment.json", environment());
  for (const char* name : {"controller.env", "worker.env"}) {
    std::ifstream file(absl::StrCat("/etc/titan/", name));
    std::stringstream text;
    if (file) text << file.rdbuf();
    if (file) bundle.add(absl::StrCat("local/", name), redact::text(text.str()));
  }
}

// Returns a job without secret values in its configuration; the text that its user wrote is replaced by its size.
ordered_json without_secrets(const v1::Job& job) {
  ordered_json shown = to_json(job);
  ordered_json& spec = shown["spec"];
  ordered_json labels = shown["labels"];
  ordered_json config = ordered_json::parse(job.spec().config_json(), nullptr, /*allow_exceptions=*/false);
  if (config.is_discarded()) config = nullptr;
  redact::values(labels);
  redact::values(config);
  if (spec.is_object()) {
    spec["config_json"] = nullptr;
    spec["config_source"] = absl::StrCat(counted(job.spec().config_source().size(), "byte"), ", left out");
  }
  redact::texts(shown);
  shown["labels"] = labels;
  if (spec.is_object()) spec["config_json"] = config;
  return shown;
}

ordered_json summary(const v1::Job& job) {
  v1::Job brief = job;
  brief.mutable_spec()->clear_config_json();
  brief.mutable_spec()->clear_config_source();
  brief.clear_attempts();
  ordered_json shown = to_json(brief);
  redact::values(shown["labels"]);
  shown["attempts"] = job.attempts_size();
  redact::texts(shown);
  return shown;
}

bool wanted_in_full(const v1::Job& job) {
  if (!is_final(job.state())) return true;
  return job.state() == v1::Job::FAILED && absl::FromUnixSeconds(job.end_time().seconds()) > absl::Now() - kRecently;
}

std::string path_of(const v1::Job& job) {
  return absl::StrCat("jobs/", absl::StrReplaceAll(short_name(job.name()), {{"/", "_"}}));
}

void add_events(ControllerClient& client, const v1::Job& job, DebugBundle& bundle) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + client.timeout()));
  client.add_credentials(context);
  v1::ListEventsRequest request;
  request.set_job(job.name());
  const auto stream = client.jobs().ListEvents(&context, request);
  std::deque<std::string> newest;
  v1::Event event;
  while (stream->Read(&event)) {
    ordered_json shown = to_json(event);
    redact::texts(shown);
    newest.push_back(shown.dump() + "\n");
    if (newest.size() > kEventsOfAJob) newest.pop_front();
  }
  const grpc::Status ended = stream->Finish();
  std::string text;
  for (const std::string& line : newest) text += line;
  bundle.add(path_of(job) + "/events.jsonl", text);
  if (!ended.ok()) bundle.miss(path_of(job) + "/events.jsonl", to_status(ended));
}

void add_job_in_full(ControllerClient& client, const v1::Job& listed, DebugBundle& bundle) {
  const auto job = client.get_job(listed.name());
  if (!job.ok()) return bundle.miss(path_of(listed), job.status());
  bundle.add(path_of(*job) + "/job.json", without_secrets(*job));
  add_events(client, *job, bundle);
}

void add_jobs(ControllerClient& client, DebugBundle& bundle) {
  v1::ListJobsRequest request;
  request.set_page_size(kPage);
  ordered_json all = ordered_json::array();
  std::vector<v1::Job> in_full;
  const auto take = [&](const v1::ListJobsResponse& page) {
    for (const v1::Job& job : page.jobs()) {
      all.push_back(summary(job));
      if (wanted_in_full(job)) in_full.push_back(job);
    }
  };
  const auto list = [&](const v1::ListJobsRequest& next) { return client.list_jobs(next); };
  if (const absl::Status read = each_page(request, list, take); !read.ok()) bundle.miss("the list of jobs", read);
  bundle.add("jobs.json", all);
  if (in_full.size() > kJobsInFull) {
    bundle.miss("jobs/", absl::ResourceExhaustedError(
                             absl::StrCat("of ", in_full.size(), " jobs the newest ", kJobsInFull, " are here")));
    in_full.resize(kJobsInFull);
  }
  note(absl::StrCat("reading ", counted(in_full.size(), "job"), " that are active or failed lately"));
  for (const v1::Job& job : in_full) add_job_in_full(client, job, bundle);
}

// Adds the Prometheus pages of workers that are in contact, as far as this machine can read them.
void add_worker_pages(const std::vector<v1::Node>& nodes, int port, DebugBundle& bundle) {
  size_t asked = 0;
  for (const v1::Node& node : nodes) {
    const std::string path = absl::StrCat(node.name(), "/metrics.txt");
    const bool speaks = node.state() == v1::Node::READY || node.state() == v1::Node::UNUSABLE;
    if (!speaks) continue;
    if (++asked > kWorkerPages) {
      return bundle.miss("nodes/", absl::ResourceExhaustedError(
                                       absl::StrCat("metrics of the first ", kWorkerPages, " ready workers are here")));
    }
    const absl::StatusOr<std::string> page = metrics::read_page(node.address(), port, kWorkerPageTimeout);
    if (page.ok()) bundle.add(path, *page);
    if (!page.ok()) bundle.miss(path, page.status());
  }
}

std::vector<v1::Node> add_nodes(ControllerClient& client, DebugBundle& bundle) {
  v1::ListNodesRequest request;
  request.set_page_size(kPage);
  ordered_json all = ordered_json::array();
  std::vector<v1::Node> nodes;
  const auto take = [&](const v1::ListNodesResponse& page) {
    for (const v1::Node& node : page.nodes()) {
      nodes.push_back(node);
      ordered_json shown = to_json(node);
      redact::values(shown["labels"]);
      redact::texts(shown);
      all.push_back(shown);
    }
  };
  const auto list = [&](const v1::ListNodesRequest& next) { return client.list_nodes(next); };
  if (const absl::Status read = each_page(request, list, take); !read.ok()) bundle.miss("the list of nodes", read);
  bundle.add("nodes.json", all);
  return nodes;
}

void add_diagnostics(ControllerClient& client, DebugBundle& bundle) {
  const auto found = client.get_diagnostics();
  if (!found.ok()) return bundle.miss("controller/", found.status());
  std::string journal;
  for (const std::string& line : found->journal()) absl::StrAppend(&journal, line, "\n");
  bundle.add("controller/journal.log", journal);
  bundle.add("controller/metrics.txt", found->metrics());
  const auto add_map = [&bundle](const std::string& name, const google::protobuf::Map<std::string, std::string>& map) {
    ordered_json shown = ordered_json(std::map<std::string, std::string>(map.begin(), map.end()));
    redact::values(shown);
    bundle.add(absl::StrCat("controller/", name, ".json"), shown);
  };
  add_map("configuration", found->configuration());
  add_map("store", found->store());
  add_map("host", found->host());
  add_map("build", found->build());
}

// Adds everything that needs a controller.
void add_remote(const Globals& globals, const DebugOptions& options, DebugBundle& bundle) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  note(absl::StrCat("asking the controller at ", globals.controller));
  const auto cluster = client.get_cluster();
  if (!cluster.ok()) return bundle.miss("cluster, nodes, jobs and controller", cluster.status());
  ordered_json shown = to_json(*cluster);
  redact::texts(shown);
  bundle.add("cluster.json", shown);
  add_diagnostics(client, bundle);
  const std::vector<v1::Node> nodes = add_nodes(client, bundle);
  if (options.worker_metrics_port != 0) add_worker_pages(nodes, options.worker_metrics_port, bundle);
  add_jobs(client, bundle);
}

}  // namespace

int debug(const Globals& globals, const DebugOptions& options) {
  const std::string name = absl::FormatTime("titan-debug-%Y%m%d-%H%M%S", absl::Now(), absl::UTCTimeZone());
  const std::string target = options.file.empty() ? name + ".tar.gz" : options.file;
  Interrupt::block_signals();
  const auto begun = DebugBundle::begin(name);
  if (!begun.ok()) return report(begun.status());
  DebugBundle& bundle = **begun;
  const Interrupt interrupt([&bundle](int) {
    bundle.abandon();
    ::_exit(kExitInterrupted);
  });
  note("collecting what this machine knows");
  add_local(bundle);
  add_remote(globals, options, bundle);
  for (const std::string& missing : bundle.missing()) warn(absl::StrCat("not in the bundle: ", missing));
  if (const absl::Status packed = bundle.pack(target); !packed.ok()) return report(packed);
  if (globals.format != OutputFormat::kTable) {
    print(ordered_json{{"file", target}, {"missing", bundle.missing()}}, globals.format);
  } else {
    print(target + "\n");
  }
  note("values whose names suggest a secret are left out; check the file before you share it");
  return kExitOk;
}

}  // namespace titan::cli
