#include "worker/node/shim/launching.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/rank_protocol/launch.h"
#include "common/rank_protocol/spool.h"

namespace titan::shim {

absl::Status launch(Rank& rank, const LaunchContext& context) {
  const Spec& spec = context.spec;
  const Folders& folders = context.folders;
  TITAN_ASSIGN_OR_RETURN(LogWriter log,
                         LogWriter::open(rank_protocol::log_path(folders.run, rank.rank), spec.log_max_bytes));
  RankCommand command;
  command.binary = spec.rank_binary;
  command.arguments = {"--config",  folders.rank + "/launch.json",
                       "--rank",    absl::StrCat(rank.rank),
                       "--world",   absl::StrCat(spec.world),
                       "--store",   context.store,
                       "--run-dir", folders.rank};
  command.user = spec.user;
  command.folder = spec.rank_folder;
  const host::Descriptor group = group_entrance(spec.group);
  command.group_fd = group.get();
  command.environment = spec.environment;
  command.environment[kRunFolderVariable] = folders.run;
  command.environment[rank_protocol::kStacksVariable] = "1";
  if (rank.rank == 0 && context.listener) {
    command.listen_fd = context.listener.get();
    command.arguments.push_back("--listen-fd");
    command.arguments.push_back(absl::StrCat(command.listen_fd));
  }
  TITAN_ASSIGN_OR_RETURN(rank.process, start_rank(command));
  rank.running = true;
  check_group_entry(context.kills, spec.group, rank.process.pid);
  context.logs.add(rank.rank, std::move(rank.process.output), std::move(log));
  return absl::OkStatus();
}

}  // namespace titan::shim
