#include "common/io/http/settings.h"

#include <unistd.h>

#include <string>

extern char** environ;

namespace titan::http {

Environment process_environment() {
  Environment out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (const size_t at = text.find('='); at != std::string::npos) out[text.substr(0, at)] = text.substr(at + 1);
  }
  return out;
}

}  // namespace titan::http
