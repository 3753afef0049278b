#include "worker/node/core/attempt_record.h"

namespace titan::node {

bool valid_uid(const std::string& uid) {
  return !uid.empty() && uid.size() <= 128 && uid[0] != '.' &&
         uid.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
             std::string::npos;
}

}  // namespace titan::node
