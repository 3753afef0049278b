#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::runtime {

// The program that sends metrics.jsonl to Weights & Biases: Python's wandb, in a process of its own that nothing here
// waits for before the end. It reads the file; a socket tells it when to finish, and ends it when this process ends.
class WandbSidecar {
 public:
  struct Setup {
    std::string dump_folder;
    std::string job_uid;
    int attempt = 1;
  };
  // Starts it, with what wandb prints in {dump}/wandb/sidecar.log. Errors: of the file system; NotFound: no Python.
  static absl::StatusOr<std::unique_ptr<WandbSidecar>> start(const Setup& setup);
  ~WandbSidecar();  // Closes the socket, and does not wait.
  WandbSidecar(const WandbSidecar&) = delete;
  WandbSidecar& operator=(const WandbSidecar&) = delete;

  // What happened since the last call; at most one warning in its life. Never waits.
  struct News {
    std::string run;  // Where the run is to be seen, once.
    std::string warning;
  };
  News look();

  void no_more_lines();  // It sends what there is and ends.
  // The same, and waits for its end; kills it after `timeout`.
  News end(absl::Duration timeout);

 private:
  WandbSidecar(pid_t pid, int socket, std::string folder) : pid_(pid), socket_(socket), folder_(std::move(folder)) {}
  bool hear(News& news);  // Reads what it has said; false: it has closed its end.
  void reap(News& news);  // Notices its end.
  void warn(News& news, const std::string& text);

  pid_t pid_;  // 0: it has ended.
  int socket_;
  std::string folder_;
  std::string heard_;  // The beginning of a line.
  bool finishing_ = false;
  bool warned_ = false;
};

}  // namespace titan::runtime
