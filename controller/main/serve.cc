#include "controller/main/serve.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <optional>
#include <random>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/host/descriptor.h"
#include "common/base/host/file_io.h"
#include "common/base/host/host_facts.h"
#include "common/base/host/signals.h"
#include "common/base/status/status.h"
#include "common/base/sync/sync.h"
#include "common/base/text/host_port.h"
#include "common/base/text/quantities.h"
#include "common/base/version/version.h"
#include "common/service/metrics/folder_space.h"
#include "common/service/rpc/certificate.h"
#include "common/service/rpc/credentials.h"
#include "common/service/systemd/service.h"
#include "controller/api/gauges.h"
#include "controller/api/server.h"
#include "controller/auth/audit.h"
#include "controller/main/diagnose.h"
#include "controller/main/state_watch.h"
#include "controller/main/stores.h"
#include "controller/store/etcd/client.h"

namespace titan {
namespace {

// Generates ids that nobody can guess and that do not repeat; thread-safe.
class Ids {
 public:
  std::string next() {
    const std::lock_guard lock(mutex_);
    return absl::StrFormat("%08x%08x%08x", device_(), device_(), device_());
  }
  double fraction() {
    const std::lock_guard lock(mutex_);
    return device_() / 4294967296.0;
  }

 private:
  std::mutex mutex_;
  std::random_device device_;
};

absl::Status write_ports(const std::string& path, int port, int metrics_port) {
  if (path.empty()) return absl::OkStatus();
  const std::string text = absl::StrFormat("{\"port\": %d, \"metrics\": %d}\n", port, metrics_port);
  return annotate(host::replace_file(path, text), "write --port-file");
}

// Returns null when no audit log is wanted.
absl::StatusOr<std::shared_ptr<auth::Audit>> open_audit(const Flags& flags, std::shared_ptr<journal::Journal> journal) {
  std::string path = flags.audit_log;
  if (path.empty() && flags.store.empty()) path = absl::StrCat(flags.state, "/audit.jsonl");
  if (path.empty() || path == "none") return nullptr;
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<auth::Audit> audit, auth::Audit::open(path, {}, std::move(journal)));
  return audit;
}

void warn_if_open(const Flags& flags, journal::Journal& journal) {
  if (!flags.security.insecure) return;
  journal.write(journal::Level::kWarning, "Insecure",
                absl::StrCat("--insecure: anyone who can reach ", flags.listen,
                             " may run programs on every node, and traffic can be read on the network"));
}

// Waits up to `wait` for a signal that ends this process and returns it; 0: none came. Other blocked signals are logged
// and change nothing.
int take_signal(absl::Duration wait, journal::Journal& journal) {
  const sigset_t signals = host::daemon_signals();
  const timespec limit = absl::ToTimespec(wait);
  const int received = std::max(0, sigtimedwait(&signals, nullptr, &limit));
  if (received == 0 || host::ends_daemon(received)) return received;
  journal.write(journal::Level::kInfo, "SignalIgnored", host::ignored_signal_message(received));
  return 0;
}

void block_signals() {
  host::block_daemon_signals();  // Every thread inherits the mask; the main thread waits for the signals.
  signal(SIGPIPE, SIG_IGN);
}

// Returns whether a new connection completes its handshake: the kernel's backlog accepts connections even when the
// program no longer does.
bool takes_connections(const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel = grpc::CreateCustomChannel(address, credentials, arguments);
  return channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(5));
}

// Calls `between` every 5 s until a signal ends this process. Exits with code 3 when new connections fail three times
// in a row: gRPC stops accepting for good, without an error, for example when file descriptors run out, and only a new
// process helps then. Sessions keep running until the exit, and ranks do not need the controller.
int wait_for_signal(const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                    journal::Journal& journal, const std::function<void()>& between) {
  constexpr absl::Duration kBetween = absl::Seconds(5);
  constexpr int kMaxFailedChecks = 3;
  int in_vain = 0;
  while (true) {
    between();
    if (const int received = take_signal(kBetween, journal); received != 0) return received;
    in_vain = takes_connections(address, credentials) ? 0 : in_vain + 1;
    if (in_vain < kMaxFailedChecks) continue;
    journal.write(journal::Level::kError, "NoNewConnections",
                  "accepts no new connections; exiting so that a new process can");
    _exit(3);
  }
}

std::shared_ptr<metrics::CallbackGauge> gauge_of_end(const std::string& certificate) {
  return std::make_shared<metrics::CallbackGauge>(
      rpc::kExpiryMetric, rpc::kExpiryHelp, metrics::Labels(),
      [certificate] { return rpc::certificate_expiry_seconds(certificate); });
}

// Returns --listen with the bound port.
std::string bound_address(const std::string& listen, int port) {
  const std::optional<HostPort> parts = split_host_port(listen);
  if (!parts) return listen;  // unix:PATH
  return absl::StrCat(parts->bracketed ? absl::StrCat("[", parts->host, "]") : parts->host, ":", port);
}

// Returns the address that the other controllers name to their clients.
std::string advertised(const Flags& flags, const std::string& bound) {
  if (!flags.advertise.empty()) return flags.advertise;
  const std::optional<HostPort> parts = split_host_port(bound);
  if (!parts || (parts->host != "0.0.0.0" && parts->host != "::" && parts->host != "*")) return bound;
  const std::string name = host::hostname();
  return name.empty() ? bound : absl::StrCat(name, ":", parts->port);
}

// Returns the text for `systemctl status`.
std::string status_of_leader(const reconcile::Reconciler& reconciler, const std::string& cluster) {
  int ready = 0, all = 0;
  for (const reconcile::NodeView& view : reconciler.nodes()) {
    ++all;
    ready += view.node.can_take_ranks() ? 1 : 0;
  }
  return absl::StrCat("leads cluster ", cluster, ": ", ready, " of ", counted(all, "node"), " ready");
}

// State of a controller that waits to lead.
struct Candidate {
  std::string bound;                        // Where it listens.
  std::unique_ptr<store::Elector> elector;  // Null unless the store is in etcd.
  std::unique_ptr<api::Standby> standby;    // Answers until the services do.
  sync::Mutex mutex;
  std::string leader TITAN_GUARDED_BY(mutex);  // Last leader that was seen.
};

absl::Status wait_to_lead(Candidate& candidate, journal::Journal& journal, systemd::Notifier& service) {
  std::string reported = "nobody";
  while (true) {
    service.alive();
    absl::Status led = candidate.elector->campaign(absl::Now() + absl::Milliseconds(100));
    {
      sync::Lock lock(candidate.mutex);
      candidate.leader = candidate.elector->holder();
    }
    if (!absl::IsDeadlineExceeded(led)) return led;
    if (const int received = take_signal(absl::ZeroDuration(), journal); received != 0) {
      return absl::CancelledError(absl::StrCat("signal ", received));
    }
    if (reported == led.message()) continue;
    reported = std::string(led.message());
    service.status(absl::StrCat("stands by: ", reported));
    journal::Line line{journal::Level::kInfo, "StandsBy", {}};
    journal.write(line.add("address", candidate.bound).add("message", reported));
  }
}

absl::Status stand_by(const Flags& flags, const std::shared_ptr<grpc::ServerCredentials>& credentials, int metrics_port,
                      Candidate& candidate, journal::Journal& journal, systemd::Notifier& service) {
  TITAN_ASSIGN_OR_RETURN(const store::EtcdAddress etcd, store::parse_etcd_address(flags.store));
  TITAN_ASSIGN_OR_RETURN(candidate.standby, api::Standby::start(
                                                flags.listen,
                                                [&candidate] {
                                                  sync::Lock lock(candidate.mutex);
                                                  return candidate.leader;
                                                },
                                                credentials));
  candidate.bound = bound_address(flags.listen, candidate.standby->port());
  store::ElectorOptions options;
  options.prefix = etcd.prefix;
  options.name = advertised(flags, candidate.bound);
  candidate.elector = std::make_unique<store::Elector>(
      std::make_shared<store::EtcdClient>(store::EtcdEndpoints{etcd.members}), options);
  TITAN_RETURN_IF_ERROR(write_ports(flags.port_file, candidate.standby->port(), metrics_port));
  service.ready();
  return wait_to_lead(candidate, journal, service);
}

}  // namespace

absl::Status serve(const Flags& flags, const std::shared_ptr<journal::RecentLines>& journal) {
  block_signals();
  host::raise_descriptor_limit();  // Every client and worker uses a descriptor.
  TITAN_ASSIGN_OR_RETURN(const auto credentials, rpc::server_credentials(flags.listen, flags.security));
  warn_if_open(flags, *journal);
  rpc::CertificateExpiryWarning certificate(flags.security.cert);
  const auto warn_of_its_end = [&] {
    if (const auto said = certificate.due(absl::Now()))
      journal->write(journal::Level::kWarning, "CertificateEnds", *said);
  };
  warn_of_its_end();
  metrics::Metrics metrics;
  if (!flags.security.cert.empty()) metrics.add(gauge_of_end(flags.security.cert));
  reconcile::Measures measures(metrics);
  systemd::Notifier service(systemd::Notifier::from_environment(), system_clock());
  const auto ids = std::make_shared<Ids>();
  int metrics_port = -1;
  const auto serve_metrics = [&]() -> absl::Status {
    if (flags.metrics_port < 0) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(metrics_port, metrics.serve(absl::StrCat(flags.metrics_address, ":", flags.metrics_port)));
    return absl::OkStatus();
  };

  OpenStore open;
  std::unique_ptr<StateWatch> state;  // Destroyed before the store, and after the page that shows its state.
  Candidate candidate;
  candidate.bound = flags.listen;
  if (flags.store.empty()) {
    TITAN_ASSIGN_OR_RETURN(open, open_file(flags, journal, measures));
  } else {
    TITAN_RETURN_IF_ERROR(serve_metrics());
    const absl::Status led = stand_by(flags, credentials, metrics_port, candidate, *journal, service);
    if (absl::IsCancelled(led)) {
      service.stopping();
      journal->write(journal::Level::kInfo, "Ending", absl::StrCat(led.message(), ", ending"));
      return absl::OkStatus();
    }
    TITAN_RETURN_IF_ERROR(led);
    TITAN_ASSIGN_OR_RETURN(open, open_in_etcd(std::move(candidate.elector), flags, journal, measures));
  }
  reconcile::ReconcilerOptions options;
  options.lease = absl::Milliseconds(flags.lease_ms);
  options.beat = std::min(absl::Seconds(1), options.lease / 5);
  options.cluster = open.store->id();
  if (!flags.store.empty()) options.leader_epoch = open.store->epoch();
  if (flags.keep_finished_days > 0) options.keep_finished = absl::Hours(24 * flags.keep_finished_days);
  options.kept_logs_bytes = int64_t{flags.kept_logs_mib} << 20;
  options.default_time_limit_seconds = flags.default_time_limit_seconds;
  options.jitter = [ids] { return ids->fraction(); };
  options.new_id = [ids] { return ids->next(); };
  options.journal = journal;
  options.on_superseded = fatal_handler(journal, measures);
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<reconcile::Reconciler> reconciler,
                         reconcile::Reconciler::open(*open.store, system_clock(), options, measures));
  const absl::Cleanup before_it_goes = [&metrics] { metrics.stop_serving(); };  // Also runs when something below fails.
  measures.leads(true);
  metrics.add(std::make_shared<api::Gauges>(*reconciler, *open.store));
  if (flags.store.empty()) metrics.add(std::make_shared<metrics::LocalFolderSpace>("state", flags.state));
  if (flags.store.empty()) {
    TITAN_ASSIGN_OR_RETURN(state, StateWatch::begin(flags.state, open.check_files, journal));
    metrics.add(std::make_shared<metrics::CallbackGauge>(
        "titan_state_folder_usable", "1 while the daemon's state folder exists and is writable.", metrics::Labels(),
        [&state] { return std::optional(state->problem().empty() ? 1.0 : 0.0); }));
  }
  candidate.standby.reset();
  api::ServerOptions server_options{candidate.bound, flags.reflection, options.new_id, {}};
  server_options.credentials = credentials;
  server_options.gate.insecure = flags.security.insecure;
  server_options.gate.authorities = flags.security.ca;
  TITAN_ASSIGN_OR_RETURN(server_options.audit, open_audit(flags, journal));
  server_options.metrics = &metrics;
  server_options.cluster = {open.store->id(),
                            absl::Now(),
                            open.copy,
                            open.scratch,
                            [&] { return diagnose(flags, *journal, metrics, *open.store); },
                            open.image,
                            [&state] { return state == nullptr ? "" : state->problem(); }};
  server_options.cluster.default_time_limit_seconds = flags.default_time_limit_seconds;
  server_options.on_tick = [&service] { service.alive(); };
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<api::Server> server,
                         api::Server::start(*reconciler, *open.store, server_options));
  if (flags.store.empty()) TITAN_RETURN_IF_ERROR(serve_metrics());
  TITAN_RETURN_IF_ERROR(write_ports(flags.port_file, server->port(), metrics_port));
  journal::Line listening{journal::Level::kInfo, "Listening", {}};
  listening.add("version", version()).add("revision", revision()).add("cluster", options.cluster);
  listening.add("port", absl::StrCat(server->port())).add("metrics_port", absl::StrCat(metrics_port));
  journal->write(listening.add("store", open.where));
  if (flags.store.empty()) service.ready();

  const int received = wait_for_signal(bound_address(candidate.bound, server->port()),
                                       rpc::own_channel(candidate.bound, flags.security), *journal, [&] {
                                         service.status(status_of_leader(*reconciler, options.cluster));
                                         warn_of_its_end();
                                       });
  service.stopping();
  journal->write(journal::Level::kInfo, "Ending", absl::StrCat("signal ", received, ", ending; ranks keep running"));
  server.reset();          // Ends calls.
  metrics.stop_serving();  // Ends scrapes, which read from what is destroyed next.
  state.reset();           // Stops looking at the store's files.
  open.store.reset();      // Writes everything queued: its callbacks still need the reconciler.
  return absl::OkStatus();
}

}  // namespace titan
