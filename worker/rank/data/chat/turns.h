#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/chat/chat_template.h"

namespace titan::data {

using TextSpan = std::pair<size_t, size_t>;  // Bytes: the first, and the one behind the last.

// What the assistant says in `text`, which the template made of all messages: of each of its messages what comes behind
// the prompt for it, up to where the conversation with it ends. InvalidArgument when the conversation up to there is no
// beginning of the text: then nobody can tell, and the template has to say it by generation blocks.
absl::StatusOr<std::vector<TextSpan>> assistant_turns(const ChatTemplate& chat,
                                                      const data_files::Conversation& conversation,
                                                      const std::string& text);

}  // namespace titan::data
