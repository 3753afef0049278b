#pragma once

#include "worker/model/hf_names.h"

// Each family's Hugging Face names stand in its own folder.
namespace titan::model {

HfFamily llama3_hf();
HfFamily llama4_hf();
HfFamily deepseek_v3_hf();
HfFamily qwen3_hf();
HfFamily gpt_oss_hf();

}  // namespace titan::model
