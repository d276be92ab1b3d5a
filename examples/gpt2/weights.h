// GPT-2's weights under the names and in the layout of Hugging Face's checkpoints.
#pragma once
#include "haliax/state_dict.h"
#include "model.h"

namespace gpt2 {

// Returns the names. `prefix` is "" or "transformer."; it precedes all names but lm_head.
StateNames hugging_face_names(std::string prefix = "");
TensorFile to_hugging_face(const Gpt2LMHeadModel&, const std::string& prefix = "");
// Returns `like` with the weights of the file, which must have its dtypes. Buffers (the causal mask
// h.N.attn.bias, h.N.attn.masked_bias) and a head that equals the embedding are skipped; any other
// mismatch raises.
Gpt2LMHeadModel from_hugging_face(TensorFile, const Gpt2LMHeadModel& like);

}  // namespace gpt2
