// titan-controller: flags, wiring, and an orderly end.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/rpc/address.h"
#include "common/status/status.h"
#include "common/storage/state_home.h"
#include "common/version/version.h"
#include "controller/api/gauges.h"
#include "controller/api/server.h"
#include "controller/store/backup.h"
#include "controller/store/sqlite_store.h"

namespace titan {
namespace {

struct Flags {
  std::string listen = "127.0.0.1:7700";
  std::string state = storage::default_state_folder("controller");
  int metrics_port = 7701;
  std::string metrics_address = "127.0.0.1";
  int lease_ms = 5000;
  double keep_finished_days = 0;
  std::string port_file;
  bool reflection = true;
  std::string restore;
};

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

// Nobody else's business: configurations may hold secrets.
absl::Status make_state_folder(const std::string& state) {
  std::error_code failed;
  std::filesystem::create_directories(state, failed);
  if (failed) return absl::UnavailableError(absl::StrCat("cannot make --state ", state, ": ", failed.message()));
  return chmod(state.c_str(), 0700) == 0 ? absl::OkStatus()
                                         : errno_status(errno, absl::StrCat("chmod --state ", state));
}

// For what is of no use after a restart.
absl::Status clear_scratch(const std::string& scratch) {
  std::error_code failed;
  std::filesystem::remove_all(scratch, failed);
  std::filesystem::create_directory(scratch, failed);
  return failed ? absl::UnavailableError(absl::StrCat("cannot make ", scratch, ": ", failed.message()))
                : absl::OkStatus();
}

std::function<absl::StatusOr<store::StoreInfo>(const std::string&)> back_up(
    const store::SqliteStore& store, const std::shared_ptr<journal::Journal>& journal) {
  return [&store, journal](const std::string& copy) {
    absl::StatusOr<store::StoreInfo> made = store.back_up(copy);
    journal::Line line{
        made.ok() ? journal::Level::kInfo : journal::Level::kError, made.ok() ? "BackupMade" : "BackupFailed", {}};
    if (made.ok()) line.add("revision", absl::StrCat(made->revision)).add("bytes", absl::StrCat(made->bytes));
    if (!made.ok()) line.add("message", std::string(made.status().message()));
    journal->write(line);
    return made;
  };
}

std::function<void(const store::Quarantined&)> tell_damage(const std::shared_ptr<journal::Journal>& journal,
                                                           reconcile::Measures& measures) {
  return [journal, &measures](const store::Quarantined& damaged) {
    measures.record_damaged();
    journal::Line line{journal::Level::kError, "RecordSetAside", {}};
    line.add("key", damaged.key).add("revision", absl::StrCat(damaged.revision)).add("message", damaged.reason);
    journal->write(line);
  };
}

// An older titan-controller kept its state in the working folder unless it was told otherwise. Not finding it there
// would be an empty cluster.
absl::Status check_for_old_state(const Flags& flags) {
  const std::string old = "titan-controller-state";
  std::error_code failed;
  if (flags.state.empty()) return absl::InvalidArgumentError("--state is needed: this user has no home folder");
  if (flags.state != storage::default_state_folder("controller") ||
      !std::filesystem::exists(absl::StrCat(old, "/", store::kDatabaseName), failed)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("the state of an older titan-controller is here in ", old,
                                                    ": go on with it by --state ", old, ", or start anew by --state ",
                                                    flags.state));
}

absl::Status restore(const Flags& flags) {
  TITAN_ASSIGN_OR_RETURN(const store::StoreInfo info, store::restore_store(flags.restore, flags.state));
  std::cout << "restored cluster " << info.cluster << " at revision " << info.revision << " (" << info.bytes
            << " bytes) into " << flags.state << std::endl;
  return absl::OkStatus();
}

absl::Status run(const Flags& flags) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // Inherited by every thread; the main one waits for them.
  signal(SIGPIPE, SIG_IGN);

  TITAN_RETURN_IF_ERROR(make_state_folder(flags.state));
  const std::string database = absl::StrCat(flags.state, "/", store::kDatabaseName);
  metrics::Metrics metrics;
  reconcile::Measures measures(metrics);
  auto ids = std::make_shared<Ids>();

  store::SqliteOptions store_options;
  store_options.on_fatal = [&](const absl::Status& status) {
    // After a failed write nothing in memory can be trusted: end, and let the supervisor start a fresh process that
    // replays the disk.
    measures.store_failed();
    std::cerr << "titan-controller: " << status.message() << "; ending" << std::endl;
    _exit(3);
  };
  store_options.on_commit = [&](int, absl::Duration took) { measures.store_commit(took); };
  const auto journal = std::make_shared<journal::StderrJournal>();
  store_options.on_damage = tell_damage(journal, measures);
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<store::SqliteStore> store, store::SqliteStore::open(database, store_options));
  reconcile::Options options;
  options.lease = absl::Milliseconds(flags.lease_ms);
  options.beat = std::min(absl::Seconds(1), options.lease / 5);
  options.cluster = store->id();
  if (flags.keep_finished_days > 0) options.keep_finished = absl::Hours(24 * flags.keep_finished_days);
  options.jitter = [ids] { return ids->fraction(); };
  options.new_id = [ids] { return ids->next(); };
  options.journal = journal;
  // Only now: whoever has the store may clear its scratch.
  const std::string scratch = absl::StrCat(flags.state, "/tmp");
  TITAN_RETURN_IF_ERROR(clear_scratch(scratch));
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<reconcile::Reconciler> reconciler,
                         reconcile::Reconciler::open(*store, system_clock(), options, measures));
  metrics.add(std::make_shared<api::Gauges>(*reconciler));
  api::ServerOptions server_options{flags.listen, flags.reflection, options.new_id, {}};
  server_options.cluster = {store->id(), absl::Now(), back_up(*store, options.journal), scratch};
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<api::Server> server, api::Server::start(*reconciler, *store, server_options));
  int metrics_port = -1;
  if (flags.metrics_port >= 0) {
    TITAN_ASSIGN_OR_RETURN(metrics_port, metrics.serve(absl::StrCat(flags.metrics_address, ":", flags.metrics_port)));
  }
  TITAN_RETURN_IF_ERROR(write_ports(flags.port_file, server->port(), metrics_port));
  std::cerr << version_line("titan-controller") << ": listening on port " << server->port() << ", metrics on port "
            << metrics_port << ", state in " << flags.state << std::endl;
  notify_ready();

  int received = 0;
  sigwait(&signals, &received);
  std::cerr << "titan-controller: signal " << received << ", ending; ranks go on" << std::endl;
  server.reset();          // No more calls,
  store.reset();           // then everything queued is written; its callbacks still need the reconciler,
  metrics.stop_serving();  // and so does the page, which reads from it.
  return absl::OkStatus();
}

std::string wrong_address(const std::string& address) {
  return std::string(rpc::check_address("the address", address, rpc::Port::kMayBeFree).message());
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  titan::rpc::quiet_grpc_log();
  titan::Flags flags;
  CLI::App app{
      "Queues, places, watches and heals training jobs.\n\n"
      "  titan-controller --state /var/lib/titan\n"
      "  titan-controller --listen 0.0.0.0:7700 --state ./state --metrics-port 7701\n"};
  app.add_option("--listen", flags.listen, "HOST:PORT or unix:PATH for titanctl and workers; port 0 takes a free one")
      ->check(CLI::Validator(titan::wrong_address, ""))
      ->capture_default_str();
  app.add_option("--state", flags.state, "Folder of the durable store, on a local disk")->capture_default_str();
  app.add_option("--restore", flags.restore,
                 "Check this backup, put it into --state, which must be empty, and end; see `titanctl cluster backup`");
  app.add_option("--metrics-port", flags.metrics_port, "Prometheus page; 0 takes a free port, -1 turns it off")
      ->capture_default_str();
  app.add_option("--metrics-address", flags.metrics_address, "Address that the Prometheus page listens on")
      ->capture_default_str();
  app.add_option("--metrics-host", flags.metrics_address)->group("");  // Its name before 0.2.
  app.add_option("--lease-ms", flags.lease_ms, "A node is lost after this long without a beat")
      ->capture_default_str()
      ->check(CLI::Range(200, 3'600'000));
  app.add_option("--keep-finished-days", flags.keep_finished_days,
                 "Delete jobs that ended longer ago, with their events; 0 keeps them for ever. Dump folders stay")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 36'500.0));
  app.add_option("--port-file", flags.port_file, "Write the bound ports there as JSON, once calls are taken");
  app.add_flag("--reflection,!--no-reflection", flags.reflection, "gRPC server reflection (default on)");
  app.set_version_flag("--version", titan::version_line("titan-controller"));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  absl::Status status = titan::check_for_old_state(flags);
  if (status.ok()) status = flags.restore.empty() ? titan::run(flags) : titan::restore(flags);
  if (status.ok()) return 0;
  std::cerr << "titan-controller: " << status.message() << std::endl;
  return 1;
}
