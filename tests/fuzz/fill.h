#pragma once

#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "tests/fuzz/parts.h"

namespace titan::fuzz {

// Fills any message from bytes, which choose its fields, their values and their number. Similar bytes give similar
// messages. Strings are often one of `words`, so that they name existing things, and always UTF-8, because Protobuf
// itself rejects others.
void fill(google::protobuf::Message& message, Parts& bytes, const std::vector<std::string>& words);

}  // namespace titan::fuzz
