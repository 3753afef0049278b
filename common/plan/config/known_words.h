#pragma once

// Words of other trainers (Hugging Face's Trainer, axolotl, Megatron, Lightning, torchtune) and of newcomers for what a
// key here says.

#include <string>
#include <string_view>

namespace titan::config {

// What to do instead of the unknown key `name` (without its section), such as "set optimizer.lr"; empty: not known.
std::string explain_word(std::string_view name);

// The same for a section that does not exist.
std::string explain_section(std::string_view section);

}  // namespace titan::config
