// titan-worker: the daemon of a node.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock/clock.h"
#include "common/base/host/descriptor.h"
#include "common/base/host/file_io.h"
#include "common/base/host/host_facts.h"
#include "common/base/host/signals.h"
#include "common/base/text/id.h"
#include "common/base/text/utf8.h"
#include "common/base/version/version.h"
#include "common/io/storage/standard_paths.h"
#include "common/service/failpoint/failpoint.h"
#include "common/service/journal/journal.h"
#include "common/service/rpc/address.h"
#include "common/service/rpc/certificate.h"
#include "common/service/rpc/credentials.h"
#include "common/service/systemd/service.h"
#include "worker/node/daemon/daemon.h"
#include "worker/node/daemon/rank_environment.h"
#include "worker/node/shim/sockets.h"

namespace {

using titan::daemon::DaemonOptions;

struct Flags {
  DaemonOptions options;
  titan::rpc::Security security;
  std::string controllers;
  std::string metrics_address = "127.0.0.1";
  int metrics_port = -1;
  std::string port_file;
  double log_max_mib = 256;
  double log_retention_hours = 168;
  double log_retention_mib = 10240;
  double stop_grace_seconds = 30;
  double memory_per_rank_gib = 0;
  std::vector<std::string> labels;
  std::string log_format = titan::journal::kText;
  bool list_failpoints = false;
};

// Node ids are resource ids; see proto/titan/v1/worker.proto.
std::string check_node(const std::string& node) {
  return titan::text::is_id(node)
             ? ""
             : "'" + node + "' is not a node id: use a letter, then up to 62 of a-z, 0-9 and -, not ending in -";
}

std::string check_label(const std::string& label) {
  const size_t equals = label.find('=');
  const bool ok =
      equals != std::string::npos && equals > 0 && label.size() <= 255 && titan::text::valid_utf8(label) == label;
  return ok ? "" : "'" + label + "' is not a label: use KEY=VALUE, at most 255 bytes";
}

// The folder must exist: otherwise a grant would cover whatever is created there later.
std::string check_folder(const std::string& folder) {
  std::error_code error;
  const bool ok = folder.rfind('/', 0) == 0 && folder.find(':') == std::string::npos &&
                  std::filesystem::is_directory(folder, error);
  return ok ? "" : "'" + folder + "' is not an existing folder: give an absolute path without ':'";
}

std::string check_address(const std::string& address) {
  if (address.empty()) return "it is empty: give the address by which other machines reach this one";
  return titan::shim::is_wildcard(address)
             ? "'" + address +
                   "' is an address to listen on, which others cannot connect to: give the "
                   "address by which other machines reach this one"
             : "";
}

std::string check_controllers(const std::string& addresses) {
  return std::string(titan::rpc::split_addresses("the address", addresses).status().message());
}

std::string host_name() {
  const std::string name = titan::host::hostname();
  return name.empty() ? "node" : absl::AsciiStrToLower(name.substr(0, name.find('.')));
}

std::string next_to_this_program(const char* name) { return (titan::host::folder_of_program() / name).string(); }

void declare(CLI::App& app, Flags& flags) {
  DaemonOptions& options = flags.options;
  app.add_option("--controller", flags.controllers,
                 "Address of titan-controller: HOST:PORT or unix:PATH; for several controllers, all addresses "
                 "separated by commas")
      ->envname("TITAN_CONTROLLER")
      ->check(CLI::Validator(check_controllers, ""))
      ->default_val("127.0.0.1:7700");
  app.add_option("--node", options.node, "Id of this node, unique in the cluster")
      ->default_val(host_name())
      ->check(check_node);
  app.add_option("--address", options.address, "Address at which ranks of other nodes reach this node")
      ->default_val("127.0.0.1")
      ->check(CLI::Validator(check_address, ""));
  app.add_option("--store-address", options.store_address,
                 "Address on which the stores of multi-node jobs listen, if not --address, for example when that is a "
                 "translated one (NAT); 0.0.0.0: all addresses of this machine");
  app.add_option("--state", options.state, "Folder for run folders, logs and state that must survive a restart")
      ->default_val(titan::storage::default_state_folder("worker"));
  app.add_option("--devices", options.devices, "auto, cpu:N or cuda:N: how many ranks fit on this node")
      ->default_val("auto");
  app.add_option("--metrics-port", flags.metrics_port, "Prometheus page; 0 takes a free port, -1 turns it off")
      ->capture_default_str()
      ->check(CLI::Range(-1, 65535));
  app.add_option("--metrics-address", flags.metrics_address,
                 "Address that the Prometheus page listens on; anybody who reaches it may read it")
      ->capture_default_str();
  app.add_option("--port-file", flags.port_file, "Write the bound ports there as JSON: {\"metrics\": PORT}");
  app.add_option("--rank-binary", options.rank_binary, "The rank program")
      ->default_val(next_to_this_program("titan-rank"));
  app.add_option("--shim-binary", options.shim_binary, "The shim program")
      ->default_val(next_to_this_program("titan-shim"));
  app.add_option("--log-max-mib", flags.log_max_mib, "Limit of each rank's log; the oldest part is deleted first")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--log-retention-hours", flags.log_retention_hours, "Keep logs of finished attempts for this time")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--log-retention-mib", flags.log_retention_mib, "Keep at most this many MiB of finished attempts")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--label", flags.labels, "Label KEY=VALUE of this node (rack, zone); may be repeated")
      ->check(CLI::Validator(check_label, ""));
  app.add_option("--rank-user", options.rank_user,
                 "A worker that is root runs all ranks as this user instead of the user who submitted the job");
  app.add_option("--allow-folder", options.grants.folders,
                 "Dump folders of jobs must be below a folder that is given this way; without the flag, anywhere; "
                 "may be repeated")
      ->allow_extra_args(false)
      ->check(CLI::Validator(check_folder, ""));
  app.add_option(
         "--plugin-folder", options.grants.plugin_folders,
         "The same for libraries of jobs (experimental.custom_import). Without the flag the rule for dump folders "
         "applies, but with --rank-user no library is allowed; may be repeated")
      ->allow_extra_args(false)
      ->check(CLI::Validator(check_folder, ""));
  app.add_option("--memory-per-rank", flags.memory_per_rank_gib,
                 "Memory limit in GiB per rank, for the sum of an attempt's ranks on this node; 0: none. Needs control "
                 "groups: see docs/worker.md")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--pass-env", options.pass_env,
         "Variable of this program's environment that ranks receive, besides those that programs and the libraries "
         "of ranks need; NAME* matches a prefix, except secrets (names that end in TOKEN, KEY, "
         "SECRET, PASSWORD), which must be named in full; may be repeated")
      ->allow_extra_args(false)
      ->check(CLI::Validator(titan::daemon::check_pass_env, ""));
  app.add_flag("--adopt-cluster", options.adopt_cluster,
               "Join the cluster of the first controller that answers, even if it is another cluster than before. For "
               "one start, after a controller's store was lost; running ranks continue");
  app.add_flag(
      "--stop-ranks-on-exit", options.stop_ranks_on_exit,
      "SIGTERM and SIGINT let the ranks save and stop; a second SIGINT kills them. Without it they keep training");
  app.add_option("--stop-grace-seconds", flags.stop_grace_seconds, "With --stop-ranks-on-exit: time to save")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--tls", flags.security.folder,
                 "Folder with ca.crt, tls.crt and tls.key, as `titanctl cluster issue` makes it: use TLS");
  app.add_option("--tls-ca", flags.security.ca, "Certificate of the authority that signed the controller's: use TLS");
  app.add_option("--tls-cert", flags.security.cert, "This node's certificate; a renewed one is used without a restart");
  app.add_option("--tls-key", flags.security.key, "Its private key");
  app.add_flag("--insecure", flags.security.insecure,
               "Allow unencrypted connections to controllers on other machines: anyone on the network path may start "
               "ranks here")
      ->envname("TITAN_INSECURE");
  app.add_option("--log-format", flags.log_format, "Format of the log on stderr: text or json")
      ->capture_default_str()
      ->check(CLI::IsMember({titan::journal::kText, titan::journal::kJson}));
  app.add_flag("--list-failpoints", flags.list_failpoints)->group("");  // For tests; see common/service/failpoint.
  app.footer(
      "The daemon may be killed and restarted at any time: its ranks keep training, and the next daemon with the same "
      "--state takes\n"
      "them over without losing an event.");
}

int list_failpoints() {
  for (const std::string& name : titan::failpoint::names()) std::printf("%s\n", name.c_str());
  return 0;
}

int fail(titan::journal::Journal& journal, const absl::Status& status) {
  journal.write(titan::journal::Level::kError, "StartFailed", std::string(status.message()));
  return titan::systemd::startup_exit_code(status);
}

}  // namespace

int main(int argc, char** argv) {
  titan::rpc::quiet_grpc_log();
  CLI::App app("The daemon of a node: starts ranks, watches them, and reports to titan-controller.", "titan-worker");
  Flags flags;
  declare(app, flags);
  app.set_version_flag("--version", titan::version_text("titan-worker", {argv, argv + argc}), titan::kVersionHelp);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (flags.list_failpoints) return list_failpoints();
  titan::host::block_daemon_signals();    // Before any thread exists: gRPC starts threads with the first credentials.
  titan::host::raise_descriptor_limit();  // Its ranks inherit the limit: the first one hosts a store for all others.
  const std::shared_ptr<titan::journal::Journal> journal = titan::journal::on_stderr(flags.log_format);
  if (const absl::Status armed = titan::failpoint::arm_from_environment(); !armed.ok()) return fail(*journal, armed);
  if (flags.options.state.empty())
    return fail(*journal, absl::InvalidArgumentError("--state is required: this user has no home folder"));
  if (auto addresses = titan::rpc::split_addresses("--controller", flags.controllers); addresses.ok()) {
    flags.options.controllers = *std::move(addresses);
  } else {
    return fail(*journal, addresses.status());
  }
  titan::rpc::use_folder(flags.security);
  for (const std::string& address : flags.options.controllers) {
    const auto credentials = titan::rpc::channel_credentials(address, flags.security);
    if (!credentials.ok()) return fail(*journal, credentials.status());
    flags.options.credentials[address] = *credentials;
  }
  flags.options.security = flags.security;
  flags.options.log_max_bytes = static_cast<int64_t>(flags.log_max_mib * (1 << 20));
  flags.options.memory_per_rank_bytes = static_cast<int64_t>(flags.memory_per_rank_gib * (1 << 30));
  flags.options.grants.one_user = !flags.options.rank_user.empty();
  flags.options.log_retention = absl::Hours(flags.log_retention_hours);
  flags.options.log_retention_bytes = static_cast<int64_t>(flags.log_retention_mib * (1 << 20));
  flags.options.stop_grace = absl::Seconds(flags.stop_grace_seconds);
  for (const std::string& label : flags.labels) {
    flags.options.labels[label.substr(0, label.find('='))] = label.substr(label.find('=') + 1);
  }
  titan::daemon::WorkerMetrics metrics(flags.options.node);
  if (const std::string& certificate = flags.security.cert; !certificate.empty()) {
    metrics.add_callback_gauge(titan::rpc::kExpiryMetric, titan::rpc::kExpiryHelp,
                               [certificate] { return titan::rpc::certificate_expiry_seconds(certificate); });
    flags.options.certificate = certificate;
  }
  titan::systemd::Notifier service(titan::systemd::Notifier::from_environment(), titan::system_clock());
  absl::StatusOr<std::unique_ptr<titan::daemon::Daemon>> daemon =
      titan::daemon::Daemon::create(flags.options, {metrics, service, *journal});
  if (!daemon.ok()) return fail(*journal, daemon.status());
  int metrics_port = 0;
  if (flags.metrics_port >= 0) {
    const absl::StatusOr<int> served = metrics.serve(absl::StrCat(flags.metrics_address, ":", flags.metrics_port));
    if (!served.ok()) return fail(*journal, served.status());
    metrics_port = *served;
  }
  if (!flags.port_file.empty()) {
    const absl::Status written =
        titan::host::replace_file(flags.port_file, absl::StrCat("{\"metrics\": ", metrics_port, "}\n"));
    if (!written.ok()) return fail(*journal, written);
  }
  (*daemon)->run();
  return 0;
}
