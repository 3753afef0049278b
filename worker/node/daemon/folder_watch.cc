#include "worker/node/daemon/folder_watch.h"

namespace titan::daemon {

void FolderWatch::look(const std::string& state, const std::set<std::string>& dumps) {
  look(state_, "state", {state});
  look(dumps_, "dump", dumps);
}

void FolderWatch::look(Look& look, const std::string& kind, const std::set<std::string>& folders) {
  if (look.busy->exchange(true)) return;
  look.lane.run([space = space_, busy = look.busy, kind, folders] {
    space->look(kind, folders);
    *busy = false;
  });
}

}  // namespace titan::daemon
