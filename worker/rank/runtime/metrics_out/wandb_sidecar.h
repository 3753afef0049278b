#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::runtime {

// The program that sends metrics.jsonl to Weights & Biases: Python's wandb in a separate process, for which this
// process waits only at its end. It reads the file. A socket signals when to finish, and closes when this process ends.
class WandbSidecar {
 public:
  struct Setup {
    std::string dump_folder;
    std::string job_uid;
    int attempt = 1;
  };
  // Starts it. wandb's output goes to {dump}/wandb/sidecar.log. Errors: those of the file system; NotFound: Python or
  // titan_wandb.py is missing.
  static absl::StatusOr<std::unique_ptr<WandbSidecar>> start(const Setup& setup);
  ~WandbSidecar();  // Closes the socket without waiting.
  WandbSidecar(const WandbSidecar&) = delete;
  WandbSidecar& operator=(const WandbSidecar&) = delete;

  // Returns news since the last call, with at most one warning per sidecar. Never waits.
  struct News {
    std::string run;  // Where the run can be viewed; set once.
    std::string warning;
  };
  News look();

  void no_more_lines();  // Makes it send the remaining lines and end.
  // Same, and waits for its end; kills it after `timeout`.
  News end(absl::Duration timeout);

 private:
  WandbSidecar(pid_t pid, int socket, std::string folder) : pid_(pid), socket_(socket), folder_(std::move(folder)) {}
  bool hear(News& news);  // Reads its messages. False: it has closed its end.
  void reap(News& news);  // Checks whether it has ended.
  void warn(News& news, const std::string& text);

  pid_t pid_;  // 0: it has ended.
  int socket_;
  std::string folder_;
  std::string heard_;  // An incomplete line.
  bool finishing_ = false;
  bool warned_ = false;
};

}  // namespace titan::runtime
