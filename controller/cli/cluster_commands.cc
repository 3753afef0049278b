#include "controller/cli/cluster_commands.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/host/file_io.h"
#include "common/base/host/host_facts.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/service/rpc/error.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/message_json.h"
#include "controller/cli/terminal.h"

namespace titan::cli {
namespace {

// The growing backup, under another name in the same folder; removed unless kept.
class Partial {
 public:
  static absl::StatusOr<Partial> create(const std::string& file) {
    Partial partial;
    partial.path_ = absl::StrCat(file, ".", ::getpid(), ".part");
    partial.fd_ = ::open(partial.path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (partial.fd_ < 0) return not_created(file, errno_status(errno, absl::StrCat("create ", file)));
    return partial;
  }
  Partial(Partial&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  Partial& operator=(Partial&&) = delete;
  ~Partial() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(path_.c_str());
  }

  const std::string& path() const { return path_; }
  absl::Status append(const std::string& data) { return host::write_all(fd_, data, path_); }
  // Links rather than renames, unless an older file may be replaced: two backups must not replace each other.
  absl::Status keep(const std::string& file, bool force) {
    if (::fsync(fd_) != 0) return errno_status(errno, absl::StrCat("fsync ", path_));
    if (force ? ::rename(path_.c_str(), file.c_str()) != 0 : ::link(path_.c_str(), file.c_str()) != 0)
      return errno_status(errno, absl::StrCat("rename the backup to ", file));
    if (!force) ::unlink(path_.c_str());
    ::close(std::exchange(fd_, -1));
    const std::string folder = std::filesystem::absolute(file).parent_path().string();
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno_status(errno, absl::StrCat("open ", folder));
    const int failed = ::fsync(fd) == 0 ? 0 : errno;
    ::close(fd);
    return failed == 0 ? absl::OkStatus() : errno_status(failed, absl::StrCat("fsync ", folder));
  }

 private:
  Partial() = default;
  // File error codes mean something else from a controller: NotFound says that there is no such job.
  static absl::Status not_created(const std::string& file, const absl::Status& why) {
    const auto code = absl::IsNotFound(why) ? absl::StatusCode::kInvalidArgument : why.code();
    return rpc::error(code, "FILE_NOT_CREATED", why.message(), {{"file", file}});
  }
  std::string path_;
  int fd_ = -1;
};

// Cancels a call that has received nothing for a while.
class StallWatch {
 public:
  explicit StallWatch(grpc::ClientContext& context, absl::Duration timeout)
      : context_(context), until_(absl::ToUnixNanos(absl::Now() + timeout)), thread_([this] { watch(); }) {}
  ~StallWatch() {
    over_.Notify();
    thread_.join();
  }
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;
  void wait_again(absl::Duration timeout) { until_ = absl::ToUnixNanos(absl::Now() + timeout); }
  bool stalled() const { return stalled_; }

 private:
  void watch() {
    while (!over_.WaitForNotificationWithDeadline(absl::FromUnixNanos(until_))) {
      if (absl::ToUnixNanos(absl::Now()) < until_) continue;
      stalled_ = true;
      return context_.TryCancel();
    }
  }
  grpc::ClientContext& context_;
  std::atomic<int64_t> until_;
  std::atomic<bool> stalled_ = false;
  absl::Notification over_;
  std::thread thread_;
};

// The controller copies its store before it sends any of it.
constexpr absl::Duration kCopyTimeout = absl::Minutes(5);
constexpr absl::Duration kChunkTimeout = absl::Seconds(30);

absl::StatusOr<v1::BackupChunk> fetch(ControllerClient& client, Partial& partial) {
  TITAN_RETURN_IF_ERROR(client.get_cluster().status());  // Obeys --timeout, like other verbs.
  grpc::ClientContext context;
  client.add_credentials(context);
  StallWatch stall(context, std::max(client.timeout(), kCopyTimeout));
  const auto stream = client.cluster().Backup(&context, v1::BackupRequest());
  v1::BackupChunk first, chunk;
  int64_t bytes = 0;
  absl::Status written;
  while (written.ok() && stream->Read(&chunk)) {
    if (bytes == 0) first = chunk;
    bytes += static_cast<int64_t>(chunk.data().size());
    written = partial.append(chunk.data());
    stall.wait_again(std::max(client.timeout(), kChunkTimeout));
  }
  if (!written.ok()) context.TryCancel();
  const grpc::Status ended = stream->Finish();
  if (!written.ok()) return written;
  if (stall.stalled()) {
    return absl::UnavailableError(absl::StrCat("the backup stalled after ", bytes, " bytes: the controller at ",
                                               client.address(), " sends no more"));
  }
  if (!ended.ok()) return to_status(ended);
  if (bytes == 0 || bytes != first.size())
    return absl::DataLossError(absl::StrCat("the controller sent ", bytes, " of ", first.size(), " bytes"));
  first.clear_data();
  return first;
}

}  // namespace

int show_cluster(const Globals& globals) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto cluster = client.get_cluster();
  if (!cluster.ok()) return report(cluster.status());
  if (globals.format != OutputFormat::kTable) {
    print(to_json(*cluster), globals.format);
    return kExitOk;
  }
  std::string out;
  const auto row = [&out](std::string_view key, const std::string& value) {
    absl::StrAppendFormat(&out, "%-12s%s\n", key, shown(value));
  };
  row("cluster", cluster->id());
  row("controller", client.address());
  row("version", cluster->version());
  row("uptime", age(cluster->start_time()));
  row("revision", absl::StrCat(cluster->revision()));
  row("nodes", absl::StrCat(cluster->ready_nodes(), " of ", cluster->nodes(), " ready"));
  if (cluster->default_time_limit_seconds() > 0) {
    row("time limit", absl::StrCat(duration_text(static_cast<double>(cluster->default_time_limit_seconds())),
                                   ", for jobs that set none"));
  }
  row("jobs", absl::StrCat(cluster->live_jobs(), " of ", cluster->jobs(), " not over"));
  if (!cluster->state_folder_problem().empty()) row("store", cluster->state_folder_problem());
  if (cluster->unknown_attempts() > 0)
    row("unknown", absl::StrCat(counted(cluster->unknown_attempts(), "attempt of a job", "attempts of jobs"),
                                " that this controller does not know; "
                                "`titanctl node list` shows where"));
  for (const v1::DamagedRecord& record : cluster->damaged()) {
    row("damaged", absl::StrCat(record.key(), ": ", record.reason(), "; set aside ", age(record.time()), " ago"));
  }
  if (cluster->damaged_records() > cluster->damaged_size())
    row("damaged", absl::StrCat("and ", cluster->damaged_records() - cluster->damaged_size(), " older ones"));
  print(out);
  return kExitOk;
}

int back_up(const Globals& globals, const std::string& file, bool force) {
  if (!force && ::access(file.c_str(), F_OK) == 0)
    return report(absl::AlreadyExistsError(absl::StrCat(file, " already exists; --force replaces it")));
  Interrupt::block_signals();
  auto partial = Partial::create(file);
  if (!partial.ok()) return report(partial.status());
  const Interrupt interrupt([path = partial->path()](int) {
    ::unlink(path.c_str());
    ::_exit(kExitInterrupted);
  });
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto made = fetch(client, *partial);
  if (!made.ok()) return report(made.status());
  const absl::Status kept = partial->keep(file, force);
  if (!kept.ok()) return report(kept);
  if (globals.format != OutputFormat::kTable) {
    print(
        nlohmann::ordered_json{
            {"file", file}, {"bytes", made->size()}, {"revision", made->revision()}, {"cluster", made->cluster()}},
        globals.format);
    return kExitOk;
  }
  print(absl::StrCat(file, ": ", made->size(), " bytes, revision ", made->revision(), ", cluster ", made->cluster(),
                     "\n"));
  return kExitOk;
}

int restore(const std::string& file, const std::string& state) {
  const std::filesystem::path program = host::folder_of_program() / "titan-controller";
  ::execl(program.c_str(), program.c_str(), "--restore", file.c_str(), "--state", state.c_str(), nullptr);
  return report(errno_status(errno, absl::StrCat("the program ", program.string(), " is needed")));
}

}  // namespace titan::cli
