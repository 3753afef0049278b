#include "controller/main/serve.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <mutex>
#include <optional>
#include <random>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/metrics/folder_space.h"
#include "common/rpc/credentials.h"
#include "common/status/status.h"
#include "common/sync/sync.h"
#include "common/text/host_port.h"
#include "common/version/version.h"
#include "controller/api/gauges.h"
#include "controller/api/server.h"
#include "controller/api/standby.h"
#include "controller/main/stores.h"
#include "controller/store/etcd/address.h"

namespace titan {
namespace {

// Ids that nobody can guess or meet twice; thread-safe.
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

// Tells systemd, when it started us, that the store is replayed and calls are taken.
void notify_ready() {
  const char* path = getenv("NOTIFY_SOCKET");
  if (path == nullptr) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(strlen(path), sizeof address.sun_path - 1);
  memcpy(address.sun_path, path, length);
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const char ready[] = "READY=1";
  if (fd >= 0) {
    (void)sendto(fd, ready, sizeof ready - 1, 0, reinterpret_cast<sockaddr*>(&address),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
    close(fd);
  }
}

// Renamed into place, so that a reader sees both ports or none.
absl::Status write_ports(const std::string& path, int port, int metrics_port) {
  if (path.empty()) return absl::OkStatus();
  const std::string temporary = path + ".tmp";
  std::ofstream(temporary) << absl::StrFormat("{\"port\": %d, \"metrics\": %d}\n", port, metrics_port);
  if (rename(temporary.c_str(), path.c_str()) != 0)
    return errno_status(errno, absl::StrCat("write --port-file ", path));
  return absl::OkStatus();
}

void say(const std::string& what) { std::cerr << version_line("titan-controller") << ": " << what << std::endl; }

// SIGTERM or SIGINT, which are blocked in every thread; 0: none within `wait`.
int take_signal(absl::Duration wait) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  const timespec limit = absl::ToTimespec(wait);
  return std::max(0, sigtimedwait(&signals, nullptr, &limit));
}

void block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // Inherited by every thread; the main one waits for them.
  signal(SIGPIPE, SIG_IGN);
}

// Every client and worker takes a descriptor, and the usual limit of 1,024 is only the one that programs get which do
// not ask.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// Whether a new connection is made: the port's backlog would take one also of a program that no longer accepts any.
bool takes_connections(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel = grpc::CreateCustomChannel(address, rpc::channel_credentials(), arguments);
  return channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(5));
}

// gRPC stops listening for good when it cannot accept, as without descriptors, and says nothing: then only a new
// process helps. Sessions go on meanwhile, and ranks need none of this.
int wait_for_signal(const std::string& address) {
  constexpr absl::Duration kBetween = absl::Seconds(5);
  constexpr int kPatience = 3;
  int in_vain = 0;
  while (true) {
    if (const int received = take_signal(kBetween); received != 0) return received;
    in_vain = takes_connections(address) ? 0 : in_vain + 1;
    if (in_vain < kPatience) continue;
    say("takes no new connections any more; ending, so that a new process does");
    _exit(3);
  }
}

// --listen with the port that was bound.
std::string bound_address(const std::string& listen, int port) {
  const std::optional<HostPort> parts = split_host_port(listen);
  if (!parts) return listen;  // unix:PATH
  return absl::StrCat(parts->bracketed ? absl::StrCat("[", parts->host, "]") : parts->host, ":", port);
}

// What clients of the other controllers are told to go to.
std::string advertised(const Flags& flags, const std::string& bound) {
  if (!flags.advertise.empty()) return flags.advertise;
  const std::optional<HostPort> parts = split_host_port(bound);
  if (!parts || (parts->host != "0.0.0.0" && parts->host != "::" && parts->host != "*")) return bound;
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? absl::StrCat(name, ":", parts->port) : bound;
}

// Of a controller that waits for its turn.
struct Candidate {
  std::string bound;                        // Where it listens.
  std::unique_ptr<store::Elector> elector;  // Nothing: a signal ended the wait.
  std::unique_ptr<api::Standby> standby;    // Answers until the services do.
  sync::Mutex mutex;
  std::string leader TITAN_GUARDED_BY(mutex);  // As was seen last.
};

absl::Status wait_to_lead(Candidate& candidate) {
  std::string told = "nobody";
  while (true) {
    absl::Status led = candidate.elector->campaign(absl::Now() + absl::Milliseconds(100));
    {
      sync::Lock lock(candidate.mutex);
      candidate.leader = candidate.elector->holder();
    }
    if (!absl::IsDeadlineExceeded(led)) return led;
    if (const int received = take_signal(absl::ZeroDuration()); received != 0) {
      return absl::CancelledError(absl::StrCat("signal ", received));
    }
    if (told == led.message()) continue;
    told = std::string(led.message());
    say(absl::StrCat("stands by at ", candidate.bound, ": ", told));
  }
}

absl::Status stand_by(const Flags& flags, int metrics_port, Candidate& candidate) {
  TITAN_ASSIGN_OR_RETURN(const store::EtcdAddress etcd, store::parse_etcd_address(flags.store));
  TITAN_ASSIGN_OR_RETURN(candidate.standby, api::Standby::start(flags.listen, [&candidate] {
                           sync::Lock lock(candidate.mutex);
                           return candidate.leader;
                         }));
  candidate.bound = bound_address(flags.listen, candidate.standby->port());
  store::ElectorOptions options;
  options.prefix = etcd.prefix;
  options.name = advertised(flags, candidate.bound);
  candidate.elector = std::make_unique<store::Elector>(
      std::make_shared<store::EtcdClient>(store::EtcdEndpoints{etcd.members}), options);
  TITAN_RETURN_IF_ERROR(write_ports(flags.port_file, candidate.standby->port(), metrics_port));
  notify_ready();
  return wait_to_lead(candidate);
}

}  // namespace

absl::Status serve(const Flags& flags) {
  block_signals();
  raise_descriptor_limit();
  metrics::Metrics metrics;
  reconcile::Measures measures(metrics);
  const auto ids = std::make_shared<Ids>();
  const auto journal = std::make_shared<journal::StderrJournal>();
  int metrics_port = -1;
  const auto serve_metrics = [&]() -> absl::Status {
    if (flags.metrics_port < 0) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(metrics_port, metrics.serve(absl::StrCat(flags.metrics_address, ":", flags.metrics_port)));
    return absl::OkStatus();
  };

  OpenStore open;
  Candidate candidate;
  candidate.bound = flags.listen;
  if (flags.store.empty()) {
    TITAN_ASSIGN_OR_RETURN(open, open_file(flags, journal, measures));
  } else {
    TITAN_RETURN_IF_ERROR(serve_metrics());
    const absl::Status led = stand_by(flags, metrics_port, candidate);
    if (absl::IsCancelled(led)) say(absl::StrCat(led.message(), ", ending"));
    if (!led.ok()) return absl::IsCancelled(led) ? absl::OkStatus() : led;
    TITAN_ASSIGN_OR_RETURN(open, open_in_etcd(std::move(candidate.elector), flags, journal, measures));
  }
  reconcile::Options options;
  options.lease = absl::Milliseconds(flags.lease_ms);
  options.beat = std::min(absl::Seconds(1), options.lease / 5);
  options.cluster = open.store->id();
  if (!flags.store.empty()) options.leader_epoch = open.store->epoch();
  if (flags.keep_finished_days > 0) options.keep_finished = absl::Hours(24 * flags.keep_finished_days);
  options.jitter = [ids] { return ids->fraction(); };
  options.new_id = [ids] { return ids->next(); };
  options.journal = journal;
  options.on_superseded = end_at_once(measures);
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<reconcile::Reconciler> reconciler,
                         reconcile::Reconciler::open(*open.store, system_clock(), options, measures));
  const absl::Cleanup before_it_goes = [&metrics] { metrics.stop_serving(); };  // Also when something below fails.
  measures.leads(true);
  metrics.add(std::make_shared<api::Gauges>(*reconciler, *open.store));
  if (flags.store.empty()) metrics.add(std::make_shared<metrics::OwnFolder>("state", flags.state));
  candidate.standby.reset();
  api::ServerOptions server_options{candidate.bound, flags.reflection, options.new_id, {}};
  server_options.cluster = {open.store->id(), absl::Now(), open.copy, open.scratch};
  server_options.metrics = &metrics;
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<api::Server> server,
                         api::Server::start(*reconciler, *open.store, server_options));
  if (flags.store.empty()) TITAN_RETURN_IF_ERROR(serve_metrics());
  TITAN_RETURN_IF_ERROR(write_ports(flags.port_file, server->port(), metrics_port));
  say(absl::StrCat("listening on port ", server->port(), ", metrics on port ", metrics_port, ", state in ",
                   open.where));
  if (flags.store.empty()) notify_ready();

  const int received = wait_for_signal(bound_address(candidate.bound, server->port()));
  std::cerr << "titan-controller: signal " << received << ", ending; ranks go on" << std::endl;
  server.reset();          // No more calls,
  metrics.stop_serving();  // nor visitors of the page, which reads from what goes now;
  open.store.reset();      // then everything queued is written: its callbacks still need the reconciler.
  return absl::OkStatus();
}

}  // namespace titan
