// titan-controller: parses flags and runs the service.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/version/version.h"
#include "common/service/failpoint/failpoint.h"
#include "common/service/rpc/address.h"
#include "common/service/systemd/service.h"
#include "controller/main/serve.h"
#include "controller/store/backup.h"
#include "controller/store/etcd/client.h"

namespace titan {
namespace {

constexpr size_t kKeptLines = 1 << 20;  // Bytes: some hours of a busy cluster.

// An older titan-controller kept its state in the working folder by default. Ignoring it would start an empty cluster.
absl::Status check_for_old_state(const Flags& flags) {
  const std::string old = "titan-controller-state";
  std::error_code failed;
  if (flags.state.empty()) return absl::InvalidArgumentError("--state is needed: this user has no home folder");
  if (flags.state != storage::default_state_folder("controller") ||
      !std::filesystem::exists(absl::StrCat(old, "/", store::kDatabaseName), failed)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(old, " in this folder holds the state of an older titan-controller: keep using it with --state ",
                   old, ", or rename it to start an empty cluster in ", flags.state));
}

absl::Status restore(const Flags& flags) {
  TITAN_ASSIGN_OR_RETURN(const store::StoreInfo info, store::restore_store(flags.restore, flags.state));
  std::cout << "restored cluster " << info.cluster << " at revision " << info.revision << " (" << info.bytes
            << " bytes) into " << flags.state << std::endl;
  return absl::OkStatus();
}

std::string wrong_address(const std::string& address) {
  return std::string(rpc::check_address("the address", address, rpc::Port::kMayBeFree).message());
}

std::string wrong_store(const std::string& text) {
  return std::string(store::parse_etcd_address(text).status().message());
}

absl::Status list_failpoints() {
  for (const std::string& name : failpoint::names()) std::cout << name << '\n';
  return absl::OkStatus();
}

absl::Status run_service(const Flags& flags, const std::shared_ptr<journal::RecentLines>& journal) {
  TITAN_RETURN_IF_ERROR(failpoint::arm_from_environment());
  if (flags.store.empty()) TITAN_RETURN_IF_ERROR(check_for_old_state(flags));
  return serve(flags, journal);
}

absl::Status run_restore(const Flags& flags) {
  if (!flags.store.empty())
    return absl::InvalidArgumentError(
        "--restore fills a --state folder; a store in etcd is restored with etcd's own tools");
  TITAN_RETURN_IF_ERROR(check_for_old_state(flags));
  return restore(flags);
}

// Ends a command that a user waits for: prints the error and returns an exit code like titanctl's.
int run_once(const absl::Status& status) {
  if (status.ok()) return 0;
  std::cerr << "titan-controller: " << status.message() << std::endl;
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? 2 : 1;
}

int run(const Flags& flags) {
  if (flags.list_failpoints) return run_once(list_failpoints());
  if (!flags.restore.empty()) return run_once(run_restore(flags));
  const auto journal = std::make_shared<journal::RecentLines>(journal::on_stderr(flags.log_format), kKeptLines);
  const absl::Status status = run_service(flags, journal);
  if (status.ok()) return 0;
  journal->write(journal::Level::kError, "StartFailed", std::string(status.message()));
  return systemd::startup_exit_code(status);
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  titan::rpc::quiet_grpc_log();
  titan::Flags flags;
  CLI::App app{
      "Queues, places, watches and heals training jobs.\n\n"
      "  titan-controller --state /var/lib/titan\n"
      "  titan-controller --listen 0.0.0.0:7700 --tls c1\n"
      "  titan-controller --listen 127.0.0.1:7700 --store etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379\n"};
  app.add_option("--listen", flags.listen, "HOST:PORT or unix:PATH for titanctl and workers; port 0 takes a free one")
      ->check(CLI::Validator(titan::wrong_address, ""))
      ->capture_default_str();
  app.add_option("--state", flags.state, "Folder of the durable store, on a local disk")->capture_default_str();
  app.add_option("--store", flags.store,
                 "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]: keeps the store there instead of in --state. Of several "
                 "controllers "
                 "with the same store one leads, and the others take over when it ends")
      ->check(CLI::Validator(titan::wrong_store, ""));
  app.add_option("--advertise", flags.advertise,
                 "HOST:PORT that the controllers standing by name while this one leads; default: --listen");
  app.add_option("--restore", flags.restore,
                 "Check this backup, put it into --state, which must be empty, and end; see `titanctl cluster backup`");
  app.add_option("--metrics-port", flags.metrics_port, "Prometheus page; 0 takes a free port, -1 turns it off")
      ->capture_default_str()
      ->check(CLI::Range(-1, 65535));
  app.add_option("--metrics-address", flags.metrics_address,
                 "Address that the Prometheus page listens on; anybody who reaches it may read it")
      ->capture_default_str();
  app.add_option("--metrics-host", flags.metrics_address)->group("");  // The flag's name before 0.2.
  app.add_option("--lease-ms", flags.lease_ms, "Milliseconds without a beat after which a node is lost")
      ->capture_default_str()
      ->check(CLI::Range(200, 3'600'000));
  app.add_option("--keep-finished-days", flags.keep_finished_days,
                 "Delete jobs that ended longer ago, with their events; 0 keeps them for ever. Dump folders stay")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 36'500.0));
  app.add_option("--default-time-limit-seconds", flags.default_time_limit_seconds,
                 "Limit for jobs that do not set scheduling.time_limit_seconds; 0: no limit. Jobs that were submitted "
                 "before keep theirs")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31));
  app.add_option(
         "--kept-logs-mib", flags.kept_logs_mib,
         "MiB of failed ranks' log ends that the store keeps for all jobs together; the oldest are deleted first")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--audit-log", flags.audit_log,
                 "File for the audit log of changes and refused changes, as JSON lines; 'none': no audit log. Default: "
                 "audit.jsonl in --state; with --store: none");
  app.add_option("--port-file", flags.port_file, "File for the bound ports, as JSON; written once calls are served");
  app.add_option("--tls", flags.security.folder,
                 "Folder with ca.crt, tls.crt and tls.key, as `titanctl cluster issue` makes it: accept TLS only");
  app.add_option("--tls-ca", flags.security.ca,
                 "Certificate of the authority that signs those of nodes and users: accept TLS only");
  app.add_option("--tls-cert", flags.security.cert,
                 "This controller's certificate; a new one is loaded without a restart");
  app.add_option("--tls-key", flags.security.key, "Its private key");
  app.add_flag(
      "--insecure", flags.security.insecure,
      "Do not identify callers, and listen in plaintext also beyond this machine: anyone who can reach the port may "
      "do everything");
  app.add_flag("--reflection,!--no-reflection", flags.reflection, "gRPC server reflection (default on)");
  app.add_option("--log-format", flags.log_format, "Format of the log on stderr: text or json")
      ->capture_default_str()
      ->check(CLI::IsMember({titan::journal::kText, titan::journal::kJson}));
  app.add_flag("--list-failpoints", flags.list_failpoints)->group("");  // For tests; see common/service/failpoint.
  app.set_version_flag("--version", titan::version_text("titan-controller", {argv, argv + argc}), titan::kVersionHelp);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  titan::rpc::use_folder(flags.security);
  return titan::run(flags);
}
