#include "controller/main/stores.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "controller/store/etcd/etcd_store.h"
#include "controller/store/sqlite_store.h"

namespace titan {
namespace {

// Makes the folder readable only for this user: configurations may hold secrets.
absl::Status make_state_folder(const std::string& state) {
  std::error_code failed;
  std::filesystem::create_directories(state, failed);
  if (failed) return absl::UnavailableError(absl::StrCat("cannot make --state ", state, ": ", failed.message()));
  return chmod(state.c_str(), 0700) == 0 ? absl::OkStatus()
                                         : errno_status(errno, absl::StrCat("chmod --state ", state));
}

// A controller whose store was deleted while it ran saved a copy next to it. Without this check a restart would begin
// an empty cluster, and every worker would be refused.
absl::Status check_rescued(const std::string& state) {
  std::error_code failed;
  if (std::filesystem::exists(absl::StrCat(state, "/", store::kDatabaseName), failed)) return absl::OkStatus();
  std::string newest;
  for (const auto& item : std::filesystem::directory_iterator(state, failed)) {
    const std::string name = item.path().filename().string();
    if (absl::StartsWith(name, absl::StrCat(store::kDatabaseName, store::kRescued))) newest = std::max(newest, name);
  }
  if (newest.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the store ", state, "/", store::kDatabaseName,
                   " was moved away or deleted while a controller used it, which saved its content to ", newest,
                   ": to keep using it, `mv ", state, "/", newest, " ", state, "/", store::kDatabaseName,
                   "`. If the original reappears, it is not newer than that copy; to begin an empty cluster, move the "
                   "copy elsewhere"));
}

// Makes an empty folder for files that are useless after a restart.
absl::Status clear_scratch(const std::string& scratch) {
  std::error_code failed;
  std::filesystem::remove_all(scratch, failed);
  std::filesystem::create_directory(scratch, failed);
  return failed ? absl::UnavailableError(absl::StrCat("cannot make ", scratch, ": ", failed.message()))
                : absl::OkStatus();
}

void log_backup(const absl::StatusOr<store::StoreInfo>& made, const std::string& actor, journal::Journal& journal) {
  journal::Line line{
      made.ok() ? journal::Level::kInfo : journal::Level::kError, made.ok() ? "BackupMade" : "BackupFailed", {}};
  if (made.ok()) line.add("revision", absl::StrCat(made->revision)).add("bytes", absl::StrCat(made->bytes));
  if (!made.ok()) line.add("message", std::string(made.status().message()));
  line.add("actor", actor);
  journal.write(line);
}

std::function<absl::StatusOr<store::StoreInfo>(const std::string&, const std::string&)> back_up(
    const store::SqliteStore& store, const std::shared_ptr<journal::Journal>& journal) {
  return [&store, journal](const std::string& copy, const std::string& actor) {
    absl::StatusOr<store::StoreInfo> made = store.back_up(copy);
    log_backup(made, actor, *journal);
    return made;
  };
}

std::function<absl::StatusOr<store::StoreImage>(const std::string&)> image(
    const store::SqliteStore& store, const std::shared_ptr<journal::Journal>& journal) {
  return [&store, journal](const std::string& actor) {
    absl::StatusOr<store::StoreImage> made = store.image();
    log_backup(made.ok() ? absl::StatusOr<store::StoreInfo>(made->info) : made.status(), actor, *journal);
    return made;
  };
}

std::function<void(const store::Quarantined&)> damage_logger(const std::shared_ptr<journal::Journal>& journal,
                                                             reconcile::Measures& measures) {
  return [journal, &measures](const store::Quarantined& damaged) {
    measures.record_damaged();
    journal::Line line{journal::Level::kError, damaged.key.empty() ? "StoreDamaged" : "RecordSetAside", {}};
    line.add("record", damaged.key).add("revision", absl::StrCat(damaged.revision)).add("message", damaged.reason);
    journal->write(line);
  };
}

}  // namespace

std::function<void(const absl::Status&)> fatal_handler(const std::shared_ptr<journal::Journal>& journal,
                                                       reconcile::Measures& measures) {
  return [journal, &measures](const absl::Status& status) {
    measures.store_failed();
    journal->write(journal::Level::kError, "StoreFailed", absl::StrCat(status.message(), "; ending"));
    _exit(3);
  };
}

absl::StatusOr<OpenStore> open_file(const Flags& flags, const std::shared_ptr<journal::Journal>& journal,
                                    reconcile::Measures& measures) {
  TITAN_RETURN_IF_ERROR(make_state_folder(flags.state));
  TITAN_RETURN_IF_ERROR(check_rescued(flags.state));
  store::SqliteOptions options;
  options.on_fatal = fatal_handler(journal, measures);
  options.on_commit = [&measures](int transactions, absl::Duration took) { measures.store_commit(transactions, took); };
  options.on_damage = damage_logger(journal, measures);
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<store::SqliteStore> store,
                         store::SqliteStore::open(absl::StrCat(flags.state, "/", store::kDatabaseName), options));
  OpenStore open;
  open.where = flags.state;
  open.copy = back_up(*store, journal);
  open.image = image(*store, journal);
  open.check_files = [raw = store.get()] { raw->check_files(); };
  open.scratch = absl::StrCat(flags.state, "/tmp");
  open.store = std::move(store);
  TITAN_RETURN_IF_ERROR(clear_scratch(open.scratch));  // Only now: a process may clear it once it has the store.
  return open;
}

absl::StatusOr<OpenStore> open_in_etcd(std::unique_ptr<store::Elector> elector, const Flags& flags,
                                       const std::shared_ptr<journal::Journal>& journal,
                                       reconcile::Measures& measures) {
  store::EtcdStoreOptions options;
  options.on_lost = fatal_handler(journal, measures);
  options.on_commit = [&measures](int transactions, absl::Duration took) { measures.store_commit(transactions, took); };
  options.on_damage = damage_logger(journal, measures);
  OpenStore open;
  open.where = flags.store;
  TITAN_ASSIGN_OR_RETURN(open.store, store::EtcdStore::open(std::move(elector), options));
  return open;
}

}  // namespace titan
