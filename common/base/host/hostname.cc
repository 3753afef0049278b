#include "common/base/host/hostname.h"

#include <unistd.h>

namespace titan::host {

std::string hostname() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace titan::host
